// Which number of threads a loop's segments are given, of times that each number is said to take.
#include "tier2/threads.cpp"

#include <cstdio>
#include <functional>
#include <map>

using namespace forebay;
using namespace forebay::worker;
using By = Threads::By;

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  ++failures;
}

// A program of segments whose times, in milliseconds, depend on how many threads they are given. Before the first of so many it pauses.
class Program {
 public:
  using Times = std::function<double(int threads)>;

  void come(int segment, const Times& times, int comings = 1, By by = By::kSteps, double pause = 0) {
    for (int coming = 0; coming < comings; ++coming) {
      count[segment][now_] += 1;
      const auto working = milliseconds(times(now_));
      worked_ += working;
      clock_ += working + milliseconds(coming == 0 ? pause : 0);
      now_ = threads.ended(steps_[segment], by, clock_, worked_);
    }
  }
  int now() const { return now_; }
  bool is_settled(int segment) { return threads.is_settled(steps_[segment]); }

  Threads threads{4};
  std::map<int, std::map<int, int>> count;  // comings of segments by threads

 private:
  static std::chrono::nanoseconds milliseconds(double count) { return std::chrono::nanoseconds(static_cast<int64_t>(count * 1e6)); }

  std::map<int, wire::Step> steps_;
  std::chrono::nanoseconds worked_{};
  Clock::time_point clock_{};
  int now_ = 4;
};

double better_with_fewer(int threads) { return threads == 4 ? 2.0 : 1.0; }
double worse_with_fewer(int threads) { return threads == 4 ? 1.0 : 2.0; }
double alike(int) { return 1.0; }

void one_segment() {
  Program program;
  program.come(1, better_with_fewer, 100);
  check(program.now() == 3, "a loop is given what it is clearly quicker with");
  check(program.count[1][4] < 60, "and soon");

  Program slower;
  slower.come(1, worse_with_fewer, 1000);
  check(slower.now() == 4, "a loop keeps all where fewer are slower");
  check(slower.count[1][3] < 50, "and fewer are tried shortly");

  Program same;
  same.come(1, alike, 1000);
  check(same.now() == 4, "where both are alike all are taken");
  check(same.count[1][3] < 100, "after twelve turns");

  Program little;
  little.come(1, [](int threads) { return threads == 4 ? 1.1 : 1.0; }, 300);
  check(little.now() == 3, "a tenth is seen, too");
}

void long_segments() {
  Program program;
  program.come(1, [](int threads) { return threads == 4 ? 500.0 : 100.0; }, 100);
  check(program.count[1][4] == 100, "long segments are not tried");
}

void several_segments() {
  Program program;
  for (int round = 0; round < 500; ++round) {
    program.come(1, better_with_fewer);
    program.come(2, worse_with_fewer);
  }
  check(program.now() == 3, "after the second segment comes the first, which takes fewer");
  program.come(1, better_with_fewer);
  check(program.now() == 4, "after the first comes the second, which takes all");
}

void what_carries_it_out() {
  Program program;
  program.come(1, better_with_fewer, 100);
  program.come(1, worse_with_fewer, 50, By::kCompared);
  check(program.now() == 3, "while a library is compared nothing changes");
  program.come(1, worse_with_fewer, 100, By::kLibrary);
  check(program.now() == 4, "a library is tried by itself");
  program.come(1, better_with_fewer, 1, By::kCompared);
  check(program.now() == 4, "one that is proved again keeps what it has");
  program.come(1, worse_with_fewer, 300, By::kLibrary);
  check(program.count[1][3] < 180, "and is not tried again for that");

  Program compiled;
  compiled.come(1, better_with_fewer, 200, By::kStepsBesideCompiler);
  check(compiled.now() == 3, "beside a compiler one less may be quicker");
  compiled.come(1, worse_with_fewer, 3, By::kCompared);
  compiled.come(1, worse_with_fewer, 200, By::kSteps);
  check(compiled.now() == 4, "and without it again all");

  Program interrupted;
  interrupted.come(1, better_with_fewer, 10);
  interrupted.come(1, better_with_fewer, 100, By::kCompared);
  check(interrupted.now() == 4, "what was not decided keeps all while it is compared");
}

void what_is_settled() {
  Program program;
  program.come(1, better_with_fewer);
  check(!program.is_settled(1), "a loop that comes for the first time is not settled");
  program.come(1, better_with_fewer, 100);
  check(program.is_settled(1), "it is when what is quicker is known");
  program.come(1, better_with_fewer, 1, By::kStepsBesideCompiler);
  check(!program.is_settled(1), "a compiler begins: it is not any more");
  program.come(1, better_with_fewer, 200, By::kStepsBesideCompiler);
  program.come(1, better_with_fewer, 1);
  check(!program.is_settled(1), "nor when it ends");

  Program irregular;
  for (int round = 0; round < 700; ++round) irregular.come(round % 2 == 0 ? 1 : 2 + round, better_with_fewer);
  check(irregular.is_settled(1), "one that comes after another one each time is given all for lack of times");
  check(irregular.count[1][3] == 0, "and never fewer");
}

void times_change() {
  Program program;
  program.come(1, worse_with_fewer, 1000);
  program.come(1, better_with_fewer, 10'000);
  check(program.now() == 3, "it is tried again, as what else the host does changes");
}

void interruptions() {
  Program program;
  int coming = 0;
  program.come(1, [&](int threads) { return ++coming % 97 == 0 ? 5000.0 : better_with_fewer(threads); }, 300);
  check(program.now() == 3, "what holds it up once in a while does not decide");

  for (const auto& times : {better_with_fewer, worse_with_fewer}) {
    Program cells;
    for (int cell = 0; cell < 30; ++cell) cells.come(1, times, 20, By::kSteps, 40.0 + cell * 700 % 1000);
    check(cells.now() == (times(3) < times(4) ? 3 : 4), "nor do the pauses between cells of twenty steps");
  }

  Program short_cells;
  for (int cell = 0; cell < 400; ++cell) short_cells.come(1, better_with_fewer, 3, By::kSteps, 100);
  check(short_cells.is_settled(1), "one in cells of three steps is given all for lack of times");

  Program held_up;
  held_up.come(1, [&](int threads) { return threads == 4 && ++coming % 6 == 0 ? 50.0 : 1.0; }, 300);
  check(held_up.now() == 3, "threads that wait for one that has no processor do");
}

void many_segments() {
  Program program;
  for (int segment = 0; segment < 5000; ++segment) program.come(segment, alike);
  program.threads.forget();
  program.come(1, better_with_fewer, 100);
  check(program.now() == 3, "after many others a loop is tried as ever");
}

}  // namespace

int main() {
  one_segment();
  long_segments();
  several_segments();
  what_carries_it_out();
  what_is_settled();
  times_change();
  interruptions();
  many_segments();
  return failures == 0 ? 0 : 1;
}
