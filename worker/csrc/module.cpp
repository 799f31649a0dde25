// The executor as Python sees it.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <torch/headeronly/version.h>

#include "base/memory.h"
#include "base/settings.h"
#include "call/operators.h"
#include "device/recurrent.h"
#include "python_device_library.h"
#include "python_executable.h"
#include "server/server.h"

namespace py = pybind11;

namespace forebay::worker {
namespace {

Ticket ticket_of(std::string_view bytes) {
  Ticket ticket;
  if (bytes.size() != ticket.size()) throw std::invalid_argument("a ticket has " + std::to_string(ticket.size()) + " bytes");
  std::copy(bytes.begin(), bytes.end(), ticket.begin());
  return ticket;
}

std::string kind_name(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kAssigned:
      return "assigned";
    case Event::Kind::kConnected:
      return "connected";
    case Event::Kind::kDrained:
      return "drained";
    case Event::Kind::kIdle:
      return "idle";
    case Event::Kind::kStarved:
      return "starved";
    case Event::Kind::kParked:
      return "parked";
    case Event::Kind::kRestored:
      return "restored";
    case Event::Kind::kLeft:
      return "left";
    case Event::Kind::kFetched:
      return "fetched";
    case Event::Kind::kKept:
      return "kept";
    case Event::Kind::kCopied:
      return "copied";
    case Event::Kind::kWaiting:
      return "waiting";
    case Event::Kind::kWorking:
      return "working";
    case Event::Kind::kClosed:
      return "closed";
    case Event::Kind::kClientAway:
      return "client_away";
    case Event::Kind::kClientBack:
      return "client_back";
    case Event::Kind::kClientGone:
      return "client_gone";
    case Event::Kind::kRefused:
      return "refused";
    case Event::Kind::kFailed:
      return "failed";
  }
  throw std::logic_error("an event of unknown kind");
}

py::list events_of(Server& server) {
  py::list result;
  for (const auto& event : server.mailbox().take_events()) result.append(py::make_tuple(kind_name(event.kind), event.epoch, event.number, event.spilled, event.text));
  return result;
}

// In seconds, with spaces between.
std::string costs_text(const SegmentCosts& costs) {
  std::ostringstream text;
  text << costs.busy_s << ' ' << costs.period_s << ' ' << costs.gather_s;
  return text.str();
}

// An offer as Python has it: its kind, the number of a segment or kernel, and what there is to say.
struct AsTuple {
  static py::tuple tuple(const char* kind, uint64_t number, const std::string& text = "") { return py::make_tuple(kind, number, py::bytes(text)); }

  py::tuple operator()(const SegmentDescribed& offer) const {
    if (offer.is_steady) return tuple("steady", offer.segment, offer.description);
    return tuple("segment", offer.segment, offer.description);
  }
  py::tuple operator()(const SegmentDue& offer) const { return tuple("due", offer.segment, offer.costs ? costs_text(*offer.costs) : ""); }
  py::tuple operator()(const LibraryRejected& offer) const { return tuple("rejected", offer.segment, offer.why); }
  py::tuple operator()(const LibraryDeclined& offer) const { return tuple("declined", offer.segment, offer.why); }
  py::tuple operator()(const LibraryTimed& offer) const { return tuple("timed", offer.segment, offer.ratio ? std::to_string(*offer.ratio) : ""); }
  py::tuple operator()(const SegmentForgotten& offer) const { return tuple("forgotten", offer.segment); }
  py::tuple operator()(const KernelDefined& offer) const { return tuple("kernel", offer.kernel, offer.description); }
  py::tuple operator()(const SessionLeaves&) const { return tuple("leaving", 0); }
  py::tuple operator()(const LibrariesImported& offer) const { return tuple("imported", 0, offer.libraries); }
};

py::list offers_of(Server& server) {
  py::list result;
  for (const auto& offer : server.mailbox().take_offers()) result.append(std::visit(AsTuple(), offer));
  return result;
}

// Loads the library at once. Throws std::exception if that cannot be.
void give_library(Server& server, uint64_t number, const std::string& path, const std::string& note, bool is_shared, std::optional<double> took) {
  server.mailbox().order(orders::TakeLibrary{number, std::make_shared<Library>(path), note, is_shared, took});
}

py::tuple statistics_of(const Server& server) {
  const auto statistics = server.statistics();
  return py::make_tuple(statistics.epoch, statistics.memory_bytes, statistics.busy_ns, statistics.commands);
}

Homes homes_of(const std::string& name) {
  if (name == "fill") return Homes::kFill;
  if (name == "scatter") return Homes::kScatter;
  if (name == "rows") return Homes::kRows;
  if (name == "data-parallel") return Homes::kDataParallel;
  if (name == "pipeline") return Homes::kPipeline;
  if (name == "mesh") return Homes::kMesh;
  throw std::invalid_argument("storages of several devices cannot be placed by " + name);
}

// A graph that Python makes: an object of forebay_worker.device_graphs.DeviceGraph.
class PythonGraph final : public DeviceGraph {
 public:
  explicit PythonGraph(py::object graph) : graph_(std::move(graph)) {}
  ~PythonGraph() override {
    const py::gil_scoped_acquire lock;
    graph_ = py::object();
  }
  PythonGraph(const PythonGraph&) = delete;
  PythonGraph& operator=(const PythonGraph&) = delete;

  void begin(const Draws& draws) override { call("begin", draws); }
  void draw() override { call("draw"); }
  void end() override { call("end"); }
  void replay(const Draws& draws) override { call("replay", draws); }
  int64_t bytes() const override {
    const py::gil_scoped_acquire lock;
    return graph_.attr("bytes").cast<int64_t>();
  }

 private:
  // What Python raises is thrown as a std::runtime_error, which needs no interpreter.
  template <typename... Arguments>
  void call(const char* name, const Arguments&... arguments) {
    const py::gil_scoped_acquire lock;
    try {
      graph_.attr(name)(arguments...);
    } catch (py::error_already_set& error) {
      throw std::runtime_error(error.what());
    }
  }

  py::object graph_;
};

// Whoever drops it last has not the GIL.
std::shared_ptr<py::object> kept_for_threads(const py::object& object) {
  return {new py::object(object), [](py::object* kept) {
            const py::gil_scoped_acquire lock;
            delete kept;
          }};
}

void take_kernels(Server& server, std::string refused, int64_t bytes_min, std::string too_little, const py::object& launch) {
  const auto kept = kept_for_threads(launch);
  server.user_code().kernels.accept_by({std::move(refused), bytes_min, std::move(too_little), [kept](uint64_t kernel, const Grid& grid, const std::string& parameters) {
                         const py::gil_scoped_acquire lock;
                         try {
                           (*kept)(kernel, grid, py::bytes(parameters));
                         } catch (py::error_already_set& error) {
                           throw std::runtime_error(py::str(error.value()).cast<std::string>());
                         }
                       }});
}

void take_programs(Server& server, std::string refused, const py::object& compile) {
  const auto kept = kept_for_threads(compile);
  const auto compiled = [kept](const std::string& module, const wire::ProgramPlacement& placement, CallbackHost& callbacks) {
    return compile_by_python(*kept, module, placement, callbacks);
  };
  server.user_code().programs.accept_by({std::move(refused), compiled});
}

MakeGraph graph_maker(const py::object& make) {
  if (make.is_none()) return nullptr;
  const auto kept = kept_for_threads(make);
  return [kept] {
    const py::gil_scoped_acquire lock;
    try {
      return std::make_unique<PythonGraph>((*kept)());
    } catch (py::error_already_set& error) {
      throw std::runtime_error(error.what());
    }
  };
}

// Address, ticket, and the hash of the certificate.
ImageSource source_of(const std::tuple<std::string, std::string, std::string>& told) {
  return {std::get<0>(told), ticket_of(std::get<1>(told)), std::get<2>(told)};
}

ImageFolder folder_of(std::string path, double fill_max) {
  ImageFolder folder;
  folder.set(std::move(path), fill_max);
  return folder;
}

void assign(Server& server, std::string_view ticket, int64_t limit_bytes, double idle_release_seconds, const std::optional<std::tuple<std::string, std::string, std::string>>& source,
            std::string images, double images_fill_max, uint64_t image, double word_seconds, bool is_outside) {
  Origin origin;
  if (source) origin = source_of(*source);
  if (image != 0) origin = KeptImage{image};
  server.assign(ticket_of(ticket), limit_bytes, idle_release_seconds, std::move(origin), folder_of(std::move(images), images_fill_max), word_seconds, is_outside);
}

void copy_checkpoint(Server& server, std::string session, uint64_t checkpoint, std::string images, double images_fill_max) {
  server.mailbox().order(orders::Copy{std::move(session), checkpoint, folder_of(std::move(images), images_fill_max)});
}

std::unique_ptr<Server> make_server(std::string kind, int index, std::string model, const std::string& address, std::optional<int> threads,
                                    std::string spill_directory, const std::vector<std::pair<std::string, std::string>>& others, const std::string& homes,
                                    Device::LimitMemory limit_memory, const py::object& make_graph, double reconnect_seconds, bool tls, bool plaintext) {
  install_host_limit();
  Encryption encryption;
  if (tls) {
    py::module_::import("ssl");  // loads the interpreter's OpenSSL
    encryption = {TlsContext::of_worker(), /*is_required=*/!plaintext};
  }
  std::vector<RankAddress> addresses;
  for (const auto& [other, ticket] : others) addresses.push_back({other, ticket_of(ticket)});
  return std::make_unique<Server>(Device(std::move(kind), index, std::move(model), std::move(limit_memory), graph_maker(make_graph)), address, threads, std::move(spill_directory), std::move(addresses),
                                  homes_of(homes), reconnect_seconds, std::move(encryption));
}

void define_functions(py::module_& module) {
  module.def("apply_settings", &apply_settings);
  module.def("schema_hash", &schema_hash);
  module.def("allowed_operators", &allowed);
  module.def("denied_operators", &denied);
}

}  // namespace

PYBIND11_MODULE(_executor, module) {
  module.doc() = "Carries out command streams by PyTorch's dispatcher, without Python";
  module.attr("TORCH_VERSION") = TORCH_VERSION;
  define_recurrent_layers();
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Server>(module, "Server")
      .def(py::init(&make_server), py::arg("kind"), py::arg("index"), py::arg("model"), py::arg("address"), py::arg("threads"), py::arg("spill_directory"),
           py::arg("others"), py::arg("homes"), py::arg("limit_memory"), py::arg("make_graph"), py::arg("reconnect_seconds") = 0.0, py::arg("tls") = false,
           py::arg("plaintext") = false)
      .def_property_readonly("address", &Server::address)
      .def_property_readonly("certificate", &Server::certificate)
      .def_property_readonly("event_descriptor", [](Server& self) { return self.mailbox().event_descriptor(); })
      .def("assign", &assign, py::arg("ticket"), py::arg("limit_bytes"), py::arg("idle_release_seconds"), py::arg("source") = py::none(), py::arg("images") = "",
           py::arg("images_fill_max") = 1.0, py::arg("image") = 0, py::arg("word_seconds") = 0.0, py::arg("is_outside") = false)
      .def("carry",
           [](Server& self, const std::tuple<std::string, std::string, std::string>& source, int64_t limit_bytes, int64_t bytes_per_second, std::string images,
              double images_fill_max, uint64_t image) { self.carry(source_of(source), limit_bytes, bytes_per_second, folder_of(std::move(images), images_fill_max), image); },
           py::arg("source"), py::arg("limit_bytes"), py::arg("bytes_per_second"), py::arg("images") = "", py::arg("images_fill_max") = 1.0, py::arg("image") = 0)
      .def("open", [](Server& self, uint64_t epoch, int64_t limit_bytes) { self.mailbox().order(orders::OpenLease{epoch, limit_bytes}); }, release())
      .def("close", [](Server& self, uint64_t epoch) { self.mailbox().order(orders::CloseLease{epoch}); }, release())
      .def("park", [](Server& self, int64_t host_bytes, int64_t spill_bytes) { self.mailbox().order(orders::Park{{host_bytes, spill_bytes}}); },
           py::arg("host_bytes"), py::arg("spill_bytes"), release())
      .def("restore", [](Server& self) { self.mailbox().order(orders::Restore{}); }, release())
      .def("copy", &copy_checkpoint, py::arg("session"), py::arg("checkpoint"), py::arg("images"), py::arg("images_fill_max"), release())
      .def("end", [](Server& self) { self.mailbox().order(orders::End{}); }, release())
      .def("take_events", &events_of)
      .def("take_rates", [](Server& self, const std::string& packed) { self.rates = DeviceRates::of(packed); }, py::arg("packed"))
      .def_property_readonly("rates", [](Server& self) { return py::bytes(self.rates ? self.rates->packed() : std::string()); })
      .def("compile", &Server::compile, py::arg("due_seconds"))
      .def("take_offers", &offers_of)
      .def("give_library", &give_library, py::arg("number"), py::arg("path"), py::arg("note"), py::arg("is_shared"), py::arg("took"))
      .def("refuse_library", [](Server& self, uint64_t number, const std::string& why) { self.mailbox().order(orders::RefuseLibrary{number, why}); },
           py::arg("number"), py::arg("why"))
      .def("lack_library", [](Server& self, uint64_t number) { self.mailbox().order(orders::LackLibrary{number}); }, py::arg("number"))
      .def("widen_segment", [](Server& self, uint64_t number, const WordPlaces& changing) { self.mailbox().order(orders::WidenSegment{number, changing}); },
           py::arg("number"), py::arg("changing"))
      .def("take_along", [](Server& self, const py::bytes& libraries) { self.mailbox().order(orders::ExportLibraries{libraries}); }, py::arg("libraries"))
      .def("take_kernels", &take_kernels, py::arg("refused"), py::arg("bytes_min"), py::arg("too_little"), py::arg("launch"))
      .def("take_programs", &take_programs, py::arg("refused"), py::arg("compile"))
      .def("collect_by", [](Server& self, const py::object& library) { self.collect_by(library_by_python(library)); }, py::arg("library"))
      .def("give_kernel",
           [](Server& self, uint64_t number, const std::string& name, const std::string& parameters) {
             self.mailbox().order(orders::TakeKernel{number, name, kernel_parameters(parameters)});
           },
           py::arg("number"), py::arg("name"), py::arg("parameters"))
      .def("refuse_kernel",
           [](Server& self, uint64_t number, int code, const std::string& why) {
             self.mailbox().order(orders::RefuseKernel{number, static_cast<wire::FailureCode>(code), why});
           },
           py::arg("number"), py::arg("code"), py::arg("why"))
      .def("statistics", &statistics_of)
      .def("running", &Server::running)
      .def("join", &Server::join, release());
  define_functions(module);
}

}  // namespace forebay::worker
