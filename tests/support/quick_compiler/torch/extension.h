// What DeepSpeed's operators use of torch's header of this name, which would take the compiler most of its time: it also
// declares the layers and optimizers of C++, and every function of ATen.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace torch {
using namespace at;
}
