// Times two or three ways of carrying a segment out against each other, by turns.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace forebay::worker {

// Whole turns are compared, since a program may wait for its device every few runs. The first run of a turn is not counted: what came before was
// the other way's.
class TurnTimer {
 public:
  // `ways`: 2, tier 1 and tier 2; or 3, of which the last is tier 2 with one thread less.
  void begin(int ways) { ways_ = ways; }
  // Whose turn it is: tier 1's, 0, or one of tier 2's.
  int turn() const { return runs_ / kTurn % ways_; }
  // Whether the run that ends now is one that a turn's time begins or ends with.
  bool is_bound() const { return runs_ % kTurn == 0 || runs_ % kTurn == kTurn - 1; }
  // A run took so long. True once enough turns were timed for a decision.
  bool note(double seconds);
  // What tier 2 takes of tier 1's time.
  double ratio() const;
  void forget();

 private:
  static constexpr int kTurn = 7;               // runs
  static constexpr size_t kTurnsFew = 4;        // of each, before it is decided if all turns of tier 2 are that much longer than any of tier 1, or shorter,
  static constexpr double kClear = 1.1;
  static constexpr double kClearSeconds = 1;    // and all took so long: what else a host does comes and goes
  static constexpr size_t kTurnsMin = 12;       // else
  static constexpr double kMiddle = 0.5;
  static constexpr double kUndisturbed = 0.25;

  // Whether tier 2 is slower in each of its turns than tier 1 in any, or quicker in each.
  bool is_clear() const;

  int ways_ = 2;
  int runs_ = 0;        // that were noted
  double seconds_ = 0;  // of this turn
  std::array<std::vector<double>, 3> times_;  // seconds of turns, of each way
};

}  // namespace forebay::worker
