// Images of a session in a folder that outlives this process: another worker goes on from one if this one dies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "session/image.h"
#include "session/shared_image.h"

namespace forebay::worker {

class ImageFolder {
 public:
  // `fill_max`: the part of its file system that may be in use once an image is there. The folder is made with the first image.
  void set(std::string path, double fill_max) {
    path_ = std::move(path);
    fill_max_ = fill_max;
  }
  bool is_set() const { return !path_.empty(); }

  // Writes the image of this number by what `send` gives to it, `bytes` about; drops all others but `base`, from which its client would go on now.
  // Returns its bytes. Throws std::system_error, with `base` still there; std::runtime_error where it has no room.
  int64_t write(uint64_t number, uint64_t base, int64_t bytes, const std::function<void(const SendImage&)>& send) const;
  // Writes the image with which a copy of another session begins; or gives the one in that other folder a name here, too. Returns its bytes. Throws as write.
  int64_t write_shared(int64_t bytes, const SharedContents& contents) const;
  int64_t link_shared(const ImageFolder& other) const;
  // Gives the receiver the image of this number. Throws std::system_error, wire::WireError where it is damaged or none.
  void read(uint64_t number, ImageReceiver& receiver) const;
  // The numbers of those that are there whole.
  std::vector<uint64_t> numbers() const;
  // Drops all images but this one.
  void keep_only(uint64_t number) const;
  // Drops all images.
  void clear() const;

 private:
  void make() const;
  std::string path_of(uint64_t number) const { return path_ + "/" + std::to_string(number); }
  // A file to write to: that of an image that is not needed any more, whose memory need not be made again.
  std::string recycled(uint64_t base) const;
  void check_room(const std::string& recycled, int64_t bytes) const;

  std::string path_;
  double fill_max_ = 1;
};

}  // namespace forebay::worker
