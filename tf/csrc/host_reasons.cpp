#include "host_reasons.h"

#include <map>
#include <utility>
#include <vector>

namespace forebay::tf {
namespace {

using tensorflow::DataType;
using Types = std::set<DataType>;

constexpr char kSizes[] = "the size of its result depends on values";
constexpr char kRandom[] = "a seed gives a processor's numbers there";
constexpr char kErrors[] = "arguments out of range are errors there";
constexpr char kValues[] = "XLA has other values for some arguments";
constexpr char kLists[] = "lists of tensors are there";
constexpr char kXla[] = "it is meant for programs of XLA";

// XLA would compute these, and the host does.
const std::map<std::string, const char*> kOperators = {
    {"AdjustContrastv2", kValues}, {"AdjustHue", kValues}, {"AdjustSaturation", kValues}, {"ApproximateEqual", kErrors}, {"Betainc", kValues},
    {"Bincount", kErrors}, {"CheckNumerics", kErrors}, {"CheckNumericsV2", kErrors}, {"Cholesky", kErrors}, {"ClipByValue", kValues},
    {"CollectiveReduceV2", kXla}, {"Cross", kErrors}, {"CumulativeLogsumexp", kValues}, {"DataFormatDimMap", kErrors}, {"DenseBincount", kErrors},
    {"DynamicPartition", kSizes}, {"EluGrad", kValues}, {"ExtractImagePatches", kValues}, {"HSVToRGB", kValues}, {"Igamma", kValues},
    {"IgammaGradA", kValues}, {"Igammac", kValues}, {"InTopK", kValues}, {"InTopKV2", kValues}, {"InvertPermutation", kErrors}, {"LRN", kValues},
    {"LRNGrad", kValues}, {"LeftShift", kValues}, {"LinSpace", kValues}, {"ListDiff", kSizes}, {"LowerBound", kValues}, {"MatrixDiagPartV2", kErrors},
    {"MatrixDiagPartV3", kErrors}, {"MatrixInverse", kErrors}, {"MatrixSetDiagV2", kErrors}, {"MatrixSetDiagV3", kErrors}, {"MatrixSolve", kErrors},
    {"MatrixTriangularSolve", kErrors}, {"Multinomial", kRandom}, {"Ndtri", kValues}, {"ParameterizedTruncatedNormal", kRandom}, {"Polygamma", kValues},
    {"Qr", kValues}, {"RGBToHSV", kValues}, {"RandomGammaGrad", kValues}, {"RandomShuffle", kRandom}, {"RandomStandardNormal", kRandom},
    {"RandomUniform", kRandom}, {"RandomUniformInt", kRandom}, {"RemoteCall", kXla}, {"ResizeBilinear", kValues}, {"ResizeBilinearGrad", kValues},
    {"ResizeNearestNeighbor", kValues}, {"ResizeNearestNeighborGrad", kValues}, {"ReverseSequence", kErrors}, {"RightShift", kValues},
    {"SelfAdjointEigV2", kValues}, {"SeluGrad", kValues}, {"SparseToDense", kErrors}, {"SqrtGrad", kValues}, {"StochasticCastToInt", kRandom},
    {"Svd", kValues}, {"SymbolicGradient", kXla}, {"TridiagonalSolve", kErrors}, {"TruncatedNormal", kRandom}, {"Unique", kSizes}, {"UniqueV2", kSizes},
    {"UpperBound", kValues}, {"Where", kSizes}, {"Zeta", kValues}};

// Beginnings of names.
const std::vector<std::pair<std::string, const char*>> kFamilies = {
    {"FakeQuant", kValues}, {"MaxPool", kValues}, {"QuantizeAndDequantize", kValues}, {"Stateful", kRandom}, {"StatelessMultinomial", kRandom}, {"StatelessParameterized", kRandom},
    {"StatelessRandom", kRandom}, {"StatelessTruncated", kRandom}, {"TensorArray", kLists}, {"TensorList", kLists}, {"Uniform", kValues}, {"Xla", kXla}};

// Of complex numbers on a branch cut, XLA's and TensorFlow's results lie on different sides, and its slopes are not conjugated; quotients in half precision are
// rounded another way, and those of whole numbers by zero are errors; what is no number is the largest one to XLA, and zero
// is more than its negative.
const Types kComplex = {tensorflow::DT_COMPLEX64, tensorflow::DT_COMPLEX128}, kHalves = {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16};
const Types kFloats = {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16, tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE};
const Types kIntegers = {tensorflow::DT_INT8,  tensorflow::DT_INT16,  tensorflow::DT_INT32,  tensorflow::DT_INT64,
                         tensorflow::DT_UINT8, tensorflow::DT_UINT16, tensorflow::DT_UINT32, tensorflow::DT_UINT64};

Types together(Types one, const Types& other) {
  one.insert(other.begin(), other.end());
  return one;
}

Types all_numbers() { return together(together(kFloats, kComplex), kIntegers); }

struct OfTypes {
  Types types;
  const char* why;
};

const std::map<std::string, OfTypes> kTypes = {{"Acos", {kComplex, kValues}},
                                               {"Acosh", {kComplex, kValues}},
                                               {"ArgMax", {kFloats, kValues}},
                                               {"ArgMin", {kFloats, kValues}},
                                               {"Asin", {kComplex, kValues}},
                                               {"Asinh", {kComplex, kValues}},
                                               {"Div", {kIntegers, kErrors}},
                                               {"FloorDiv", {together(kHalves, kIntegers), kErrors}},
                                               {"FloorMod", {together(kHalves, kIntegers), kErrors}},
                                               {"Mod", {kIntegers, kErrors}},
                                               {"Pow", {together(kComplex, kIntegers), kErrors}},
                                               {"ReciprocalGrad", {kComplex, kValues}},
                                               {"Rsqrt", {kComplex, kValues}},
                                               {"RsqrtGrad", {kComplex, kValues}},
                                               {"Sqrt", {kComplex, kValues}},
                                               {"TensorScatterMax", {kFloats, kValues}},
                                               {"TensorScatterMin", {kFloats, kValues}},
                                               {"TopK", {kFloats, kValues}},
                                               {"TopKV2", {kFloats, kValues}},
                                               {"TruncateDiv", {kIntegers, kErrors}},
                                               {"TruncateMod", {kIntegers, kErrors}},
                                               {"UnsortedSegmentMax", {kFloats, kValues}},
                                               {"UnsortedSegmentMin", {kFloats, kValues}}};

// What changes variables cannot go where the variable is not. XLA has other values for slopes and updates that are no numbers, and for rates out of range; it
// divides by zero, and ends the process for sums of truth values.
const std::map<std::string, Types> kRefused = {{"ResourceApplyAdaMax", all_numbers()},
                                               {"ResourceApplyCenteredRMSProp", all_numbers()},
                                               {"ResourceApplyFtrl", all_numbers()},
                                               {"ResourceApplyFtrlV2", all_numbers()},
                                               {"ResourceApplyProximalAdagrad", all_numbers()},
                                               {"ResourceApplyProximalGradientDescent", all_numbers()},
                                               {"ResourceScatterDiv", all_numbers()},
                                               {"ResourceScatterMax", kFloats},
                                               {"ResourceScatterMin", kFloats},
                                               {"ResourceScatterNdAdd", {tensorflow::DT_BOOL}},
                                               {"ResourceScatterNdSub", {tensorflow::DT_BOOL}}};

}  // namespace

const char* why_on_host(const std::string& op) {
  if (const auto found = kOperators.find(op); found != kOperators.end()) return found->second;
  for (const auto& [family, why] : kFamilies) {
    if (op.rfind(family, 0) == 0) return why;
  }
  return nullptr;
}

const Types& types_on_host(const std::string& op) {
  static const Types none;
  const auto found = kTypes.find(op);
  return found == kTypes.end() ? none : found->second.types;
}

const Types& types_refused(const std::string& op) {
  static const Types none;
  const auto found = kRefused.find(op);
  return found == kRefused.end() ? none : found->second;
}

const char* why_of_types(const std::string& op) { return kTypes.at(op).why; }

}  // namespace forebay::tf
