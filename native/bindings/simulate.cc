// The Python module venusrl.simulate._engines. Bodies convert, release the GIL, call, wrap.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "simulate/engines.h"

namespace py = pybind11;
using namespace venus::simulate;

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

// A numpy array over the column itself: what the engines do is seen at once.
template <typename T>
auto view(std::vector<T> Rows::* column) {
  return [column](py::object self) {
    std::vector<T>& values = self.cast<Engines&>().rows().*column;
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data(), self);
  };
}

void place(Engines& self, const Column<int64_t>& rows, const Column<bool>& critical,
           const Column<int64_t>& rank, const Column<bool>& admitted,
           const Column<int64_t>& level, const Column<int64_t>& worker) {
  for (py::ssize_t i = 0; i < rows.size(); i++)
    self.place(rows.at(i), critical.at(i), rank.at(i), admitted.at(i), level.at(i),
               worker.at(i));
  self.placed();
}

py::dict counts(const Engines& self) {
  Counts sum;
  for (const Engine& engine : self.engines()) {
    const Counts& one = engine.counts;
    sum.prefilled += one.prefilled;
    sum.decoded += one.decoded;
    sum.reloaded += one.reloaded;
    sum.written_back += one.written_back;
    sum.preempted += one.preempted;
    sum.asked += one.asked;
    sum.hit += one.hit;
    sum.steps += one.steps;
    sum.busy_s += one.busy_s;
    sum.prefill_s += one.prefill_s;
  }
  using namespace py::literals;
  return py::dict("prefilled"_a = sum.prefilled, "decoded"_a = sum.decoded,
                  "reloaded"_a = sum.reloaded, "written_back"_a = sum.written_back,
                  "preempted"_a = sum.preempted, "asked"_a = sum.asked, "hit"_a = sum.hit,
                  "steps"_a = sum.steps, "busy_s"_a = sum.busy_s,
                  "prefill_s"_a = sum.prefill_s);
}

py::list memory(const Engines& self) {
  py::list result;
  for (const Engine& engine : self.engines())
    result.append(py::make_tuple(engine.kv_used, engine.host_used));
  return result;
}

}  // namespace

PYBIND11_MODULE(_engines, module) {
  module.doc() = "Simulated inference engines. Types and documentation: _engines.pyi.";
  py::class_<Engines>(module, "Engines")
      .def(py::init([](double overhead_s, double weights_s, double read_s, double compute_s,
                       double attend_s, double reload_s, double writeback_s,
                       int64_t kv_capacity, int64_t host_capacity, int64_t step_tokens,
                       int64_t max_running, int64_t block_tokens, bool by_rank,
                       bool by_level, bool displace, double patience_s, int64_t prefill_tokens, int64_t reserve_tokens,
                       int64_t evict_tokens, size_t engines, size_t rows, size_t groups) {
             return Engines({overhead_s, weights_s, read_s, compute_s, attend_s, reload_s,
                             writeback_s, kv_capacity, host_capacity, step_tokens, max_running,
                             block_tokens},
                            {by_rank, by_level, displace, patience_s, prefill_tokens,
                             reserve_tokens, evict_tokens},
                            engines, rows, groups);
           }),
           py::kw_only(), py::arg("overhead_s"), py::arg("weights_s"), py::arg("read_s"),
           py::arg("compute_s"), py::arg("attend_s"), py::arg("reload_s"),
           py::arg("writeback_s"), py::arg("kv_capacity"), py::arg("host_capacity"),
           py::arg("step_tokens"), py::arg("max_running"), py::arg("block_tokens"),
           py::arg("by_rank"), py::arg("by_level"), py::arg("displace"), py::arg("patience_s"),
           py::arg("prefill_tokens"), py::arg("reserve_tokens"), py::arg("evict_tokens"),
           py::arg("engines"), py::arg("rows"), py::arg("groups"))
      .def("start", &Engines::start)
      .def("retire", &Engines::retire)
      .def("place", &place)
      .def("advance", &Engines::advance, py::call_guard<py::gil_scoped_release>())
      .def("counts", &counts)
      .def("memory", &memory)
      .def_property_readonly("now", &Engines::now)
      .def_property_readonly("phase", view(&Rows::phase))
      .def_property_readonly("turn", view(&Rows::turn))
      .def_property_readonly("context", view(&Rows::context))
      .def_property_readonly("to_generate", view(&Rows::to_generate))
      .def_property_readonly("kv", view(&Rows::kv))
      .def_property_readonly("host", view(&Rows::host))
      .def_property_readonly("arrival", view(&Rows::arrival))
      .def_property_readonly("since", view(&Rows::since))
      .def_property_readonly("worker", view(&Rows::worker))
      .def_property_readonly("moved_turn", view(&Rows::moved_turn))
      .def_property_readonly("admitted", view(&Rows::admitted));
}
