// What this side keeps about a worker beside the stream itself.
#pragma once

#include <string>

namespace forebay {

class WorkerKnowledge {
 public:
  // The connection's numbering begins again. Under the lock of the commands.
  virtual void forget() = 0;
  // A result of the operator, whatever its overload, had another geometry than this side had said.
  virtual void distrust(const std::string& op) = 0;

 protected:
  ~WorkerKnowledge() = default;
};

}  // namespace forebay
