// Python's view of wire.h: primitives that forebay_wire.stream composes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <forebay/gang_plan.h>
#include <forebay/operators.h>
#include <forebay/programs.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

namespace py = pybind11;
namespace wire = forebay::wire;

namespace {

// A Reader together with the bytes it reads.
class BytesReader {
 public:
  explicit BytesReader(py::bytes data)
      : data_(std::move(data)),
        view_(data_),
        reader_(reinterpret_cast<const uint8_t*>(view_.data()), view_.size()) {}

  wire::Reader& reader() { return reader_; }

 private:
  py::bytes data_;
  std::string_view view_;
  wire::Reader reader_;
};

py::tuple tuple_of(const std::vector<int64_t>& values) {
  py::tuple result(values.size());
  for (size_t index = 0; index < values.size(); ++index) result[index] = py::int_(values[index]);
  return result;
}

py::tuple describe(const wire::Geometry& geometry) {
  return py::make_tuple(geometry.dtype, tuple_of(geometry.sizes), tuple_of(geometry.strides), geometry.flags);
}

py::tuple describe(const wire::Argument& argument) {
  py::tuple items(argument.items.size());
  for (size_t index = 0; index < argument.items.size(); ++index) items[index] = describe(argument.items[index]);
  py::object geometry = py::none();
  if (argument.tag == wire::Tag::kTensor) geometry = describe(argument.geometry);
  return py::make_tuple(static_cast<int>(argument.tag), geometry, argument.dtype, argument.flag, argument.integer, argument.count,
                        tuple_of(argument.list), py::bytes(argument.text), items, argument.layout);
}

py::tuple describe(const wire::Output& output) {
  py::tuple items(output.items.size());
  for (size_t index = 0; index < output.items.size(); ++index) items[index] = describe(output.items[index]);
  py::object geometry = py::none();
  if (output.tag == wire::OutputTag::kNew) geometry = describe(output.geometry);
  return py::make_tuple(static_cast<int>(output.tag), geometry, output.storage_bytes, output.same, items);
}

py::tuple describe(const wire::Template& call) {
  py::tuple arguments(call.arguments.size());
  for (size_t index = 0; index < call.arguments.size(); ++index) arguments[index] = describe(call.arguments[index]);
  py::tuple outputs(call.outputs.size());
  for (size_t index = 0; index < call.outputs.size(); ++index) outputs[index] = describe(call.outputs[index]);
  return py::make_tuple(call.op, call.flags, arguments, outputs);
}

wire::Geometry geometry_of(uint8_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, uint8_t flags) {
  if (sizes.size() != strides.size()) throw wire::WireError("a tensor has as many strides as sizes");
  wire::Geometry geometry;
  geometry.dtype = dtype;
  geometry.flags = flags;
  geometry.sizes = std::move(sizes);
  geometry.strides = std::move(strides);
  return geometry;
}

void bind_writer(py::module_& module) {
  py::class_<wire::Writer>(module, "Writer")
      .def(py::init<>())
      .def("u8", &wire::Writer::u8)
      .def("varint", &wire::Writer::varint)
      .def("zigzag", &wire::Writer::zigzag)
      .def("f64", &wire::Writer::f64)
      .def("u64", &wire::Writer::u64)
      .def("raw", [](wire::Writer& self, std::string_view data) { self.raw(data.data(), data.size()); })
      .def("string", &wire::Writer::string)
      .def("geometry",
           [](wire::Writer& self, uint8_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, uint8_t flags) {
             const auto geometry = geometry_of(dtype, std::move(sizes), std::move(strides), flags);
             wire::put_geometry(self, geometry.dtype, geometry.flags, geometry.sizes, geometry.strides);
           })
      .def("sparse_head",
           [](wire::Writer& self, uint8_t layout, bool coalesced, const std::vector<int64_t>& sizes) {
             wire::put_sparse_head(self, layout, coalesced, sizes);
           })
      .def("clear", &wire::Writer::clear)
      .def("__len__", &wire::Writer::size)
      .def("bytes", [](const wire::Writer& self) {
        return py::bytes(reinterpret_cast<const char*>(self.bytes().data()), self.size());
      });
}

void bind_reader(py::module_& module) {
  py::class_<BytesReader>(module, "Reader")
      .def(py::init<py::bytes>())
      .def("done", [](BytesReader& self) { return self.reader().done(); })
      .def("left", [](BytesReader& self) { return self.reader().left(); })
      .def("u8", [](BytesReader& self) { return self.reader().u8(); })
      .def("varint", [](BytesReader& self) { return self.reader().varint(); })
      .def("zigzag", [](BytesReader& self) { return self.reader().zigzag(); })
      .def("f64", [](BytesReader& self) { return self.reader().f64(); })
      .def("u64", [](BytesReader& self) { return self.reader().u64(); })
      .def("bounded", [](BytesReader& self, uint64_t most, const std::string& what) { return self.reader().bounded(most, what.c_str()); })
      .def("count", [](BytesReader& self, uint64_t most, const std::string& what) { return self.reader().count(most, what.c_str()); })
      .def("raw",
           [](BytesReader& self, size_t size) {
             return py::bytes(reinterpret_cast<const char*>(self.reader().raw(size)), size);
           })
      .def("string", [](BytesReader& self, size_t most) { return py::bytes(self.reader().string(most)); },
           py::arg("most") = wire::kStringBytesMax)
      .def("geometry", [](BytesReader& self) { return describe(wire::get_geometry(self.reader())); })
      .def("sparse_head",
           [](BytesReader& self) {
             const auto head = wire::get_sparse_head(self.reader());
             return py::make_tuple(head.layout, head.coalesced, tuple_of(head.sizes), wire::sparse_parts(head.layout));
           })
      .def("template", [](BytesReader& self) { return describe(wire::get_template(self.reader())); });
}

// The steps of a stream, as both of its ends keep them.
class Steps {
 public:
  void come(uint64_t key, const std::vector<uint8_t>& kinds, const wire::Words& words, const wire::Words& freed) {
    if (kinds.size() != words.size()) throw wire::WireError("a step has a kind for each word");
    std::vector<wire::Word> known;
    for (const uint8_t kind : kinds) {
      if (kind > static_cast<uint8_t>(wire::Word::kCounter)) throw wire::WireError("a word of unknown kind");
      known.push_back(static_cast<wire::Word>(kind));
    }
    traces_.come(key, known, words, freed);
  }

  // The step that came last here, or the one of this number, comes again: its key, its words, and what it frees beyond what was told.
  py::tuple again(std::optional<uint64_t> child, const std::vector<std::pair<size_t, uint64_t>>& changed, wire::Words freed, bool all_told) {
    wire::Step* step = child ? traces_.child(*child) : traces_.likely();
    if (step == nullptr) throw wire::WireError("a step that did not come before");
    std::vector<wire::Change> changes;
    for (const auto& [index, word] : changed) {
      if (index >= step->slots.size() || (!changes.empty() && index <= changes.back().index)) throw wire::WireError("a change of a word that a step does not have");
      changes.push_back({index, word});
    }
    wire::Words words;
    traces_.expect(*step, changes, words);
    const size_t told = freed.size();
    if (!all_told && traces_.expects_more_freed(*step, freed)) traces_.expect_freed(*step, told, freed);
    const uint64_t key = step->key;
    traces_.take(*step, words, freed);
    return py::make_tuple(key, words, wire::Words(freed.begin() + static_cast<std::ptrdiff_t>(told), freed.end()));
  }

  void cut(bool forget) {
    if (forget) traces_.clear();
    traces_.cut();
  }

 private:
  wire::Traces traces_;
};

void bind_steps(py::module_& module) {
  py::class_<Steps>(module, "Steps").def(py::init<>()).def("come", &Steps::come).def("again", &Steps::again).def("cut", &Steps::cut);
}

void bind_limits(py::module_& module) {
  py::dict own_operators;
  for (const auto& own : wire::kOwnOperators) own_operators[own.name] = own.schema;
  module.attr("OWN_OPERATORS") = own_operators;
  module.attr("MAGIC") = wire::kMagic;
  module.attr("VERSION") = wire::kVersion;
  module.attr("FRAME_HEADER_BYTES") = wire::kFrameHeaderBytes;
  module.attr("FRAME_BYTES_MAX") = wire::kFrameBytesMax;
  module.attr("CHUNK_BYTES_MAX") = wire::kChunkBytesMax;
  module.attr("SHARED_BYTES_MAX") = wire::kSharedBytesMax;
  module.attr("SHARED_HEADER_BYTES") = wire::kSharedHeaderBytes;
  module.attr("TICKET_BYTES") = wire::kTicketBytes;
  module.attr("STRING_BYTES_MAX") = wire::kStringBytesMax;
  module.attr("MESSAGE_BYTES_MAX") = wire::kMessageBytesMax;
  module.attr("ITEMS_MAX") = wire::kItemsMax;
  module.attr("ARGUMENTS_MAX") = wire::kArgumentsMax;
  module.attr("OPERATORS_MAX") = wire::kOperatorsMax;
  module.attr("TEMPLATES_MAX") = wire::kTemplatesMax;
  module.attr("STORAGES_MAX") = wire::kStoragesMax;
  module.attr("STEPS_MAX") = wire::kStepsMax;
  module.attr("LONE_WORK_MAX") = wire::kLoneWorkMax;
  module.attr("PLAN_ITEMS_MAX") = wire::kPlanItemsMax;
  module.attr("STEP_WORDS_MAX") = wire::kStepWordsMax;
  module.attr("TIMES_MAX") = wire::kTimesMax;
  module.attr("SETTINGS_MAX") = wire::kSettingsMax;
  module.attr("MEMBERS_MAX") = wire::kMembersMax;
  module.attr("KERNELS_MAX") = wire::kKernelsMax;
  module.attr("KERNEL_BYTES_MAX") = wire::kKernelBytesMax;
  module.attr("PROGRAM_BYTES_MAX") = wire::kProgramBytesMax;
  module.attr("PROGRAM_ARRAYS_MAX") = wire::kProgramArraysMax;
  module.attr("PROGRAM_DEVICES_MAX") = wire::kProgramDevicesMax;
  module.attr("CALLBACK_BYTES_MAX") = wire::kCallbackBytesMax;
  module.attr("DIMS_MAX") = wire::kDimsMax;
  module.attr("PATIENCE_MS_MAX") = wire::kPatienceMsMax;
  module.attr("STORAGE_BYTES_MAX") = wire::kStorageBytesMax;
}

}  // namespace

PYBIND11_MODULE(_stream, module) {
  module.doc() = "Primitives of the command stream, from wire.h";
  py::register_exception<wire::WireError>(module, "WireError", PyExc_ValueError);
  bind_writer(module);
  bind_reader(module);
  bind_steps(module);
  bind_limits(module);
  module.def("frame_size", [](std::string_view header) {
    if (header.size() != wire::kFrameHeaderBytes) throw wire::WireError("a frame header has four bytes");
    return wire::get_frame_header(reinterpret_cast<const uint8_t*>(header.data()));
  });
  module.def("frame_header", [](size_t body_bytes) {
    uint8_t header[wire::kFrameHeaderBytes];
    wire::put_frame_header(header, body_bytes);
    wire::get_frame_header(header);
    return py::bytes(reinterpret_cast<const char*>(header), sizeof(header));
  });
  module.def("span_of", [](uint8_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, uint8_t flags) {
    return wire::span_of(geometry_of(dtype, std::move(sizes), std::move(strides), flags));
  });
}
