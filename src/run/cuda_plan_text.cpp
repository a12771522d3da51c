// Plans of CUDA kernels as JSON and as a translation unit.
#include <nlohmann/json.hpp>

#include "run/cuda_plan.h"
#include "support/check.h"

namespace tilewright::run {
namespace {

using Json = nlohmann::json;

std::string to_hex(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
}

std::string from_hex(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
        bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

Json to_json(const std::vector<PlannedArray>& arrays) {
    Json list = Json::array();
    for (const PlannedArray& array : arrays) {
        list.push_back({array.name, std::string(name(array.type.dtype)), array.type.shape});
    }
    return list;
}

std::vector<PlannedArray> arrays_of(const Json& list) {
    std::vector<PlannedArray> arrays;
    for (const Json& one : list) {
        const auto dtype = parse_dtype(one.at(1).get<std::string>());
        if (!dtype) user_error("cuda_kernel", "expected a dtype but got {}", one.at(1).dump());
        arrays.push_back(
            {one.at(0).get<std::string>(), {*dtype, one.at(2).get<std::vector<std::int64_t>>()}});
    }
    return arrays;
}

PlanData plan_of(const Json& json) {
    PlanData plan;
    plan.name = json.at("name");
    plan.file = json.at("file");
    plan.source = json.at("source");
    for (const Json& one : json.at("headers")) plan.headers.push_back({one.at(0), one.at(1)});
    plan.options = json.at("options").get<std::vector<std::string>>();
    plan.inputs = arrays_of(json.at("inputs"));
    plan.outputs = arrays_of(json.at("outputs"));
    if (!json.at("workspace").is_null()) plan.workspace_bytes = json.at("workspace");
    plan.clear_workspace = json.at("clear_workspace");
    plan.batch_in_grid = json.at("batch_in_grid");
    for (const Json& one : json.at("attributes")) {
        plan.attributes.push_back({one.at(0), one.at(1), one.at(2), from_hex(one.at(3))});
    }
    for (const Json& one : json.at("launches")) {
        PlannedLaunch launch{one.at("kernel"), one.at("grid"), one.at("block"), one.at("cluster"),
                             one.at("shared")};
        check_launch(plan.name, launch);
        plan.launches.push_back(std::move(launch));
    }
    if (const Json& cpu = json.at("cpu"); !cpu.is_null()) {
        plan.cpu = CpuFunction{cpu.at("ir"), cpu.at("library"), cpu.at("entry")};
    }
    for (const Json& one : json.at("batches")) {
        PlannedBatch batch{one.at(0), one.at(1).get<std::vector<bool>>()};
        if (batch.mapped.size() != plan.inputs.size() || batch.size < 0) {
            user_error("cuda_kernel", "expected a batch of {} inputs but got {}",
                       plan.inputs.size(), one.dump());
        }
        plan.batches.push_back(std::move(batch));
    }
    return plan;
}

}  // namespace

std::string to_text(const PlanData& plan) {
    Json json{{"name", plan.name},
              {"file", plan.file},
              {"source", plan.source},
              {"headers", Json::array()},
              {"options", plan.options},
              {"inputs", to_json(plan.inputs)},
              {"outputs", to_json(plan.outputs)},
              {"workspace", nullptr},
              {"clear_workspace", plan.clear_workspace},
              {"batch_in_grid", plan.batch_in_grid},
              {"attributes", Json::array()},
              {"launches", Json::array()},
              {"cpu", nullptr},
              {"batches", Json::array()}};
    for (const cuda::Header& header : plan.headers) {
        json["headers"].push_back({header.name, header.text});
    }
    if (plan.workspace_bytes) json["workspace"] = *plan.workspace_bytes;
    for (const PlannedAttribute& one : plan.attributes) {
        json["attributes"].push_back({one.name, one.check, one.wants, to_hex(one.bytes)});
    }
    for (const PlannedLaunch& one : plan.launches) {
        json["launches"].push_back({{"kernel", one.kernel},
                                    {"grid", one.grid},
                                    {"block", one.block},
                                    {"cluster", one.cluster},
                                    {"shared", one.shared_bytes}});
    }
    if (plan.cpu) {
        json["cpu"] = {
            {"ir", plan.cpu->ir}, {"library", plan.cpu->library}, {"entry", plan.cpu->entry}};
    }
    for (const PlannedBatch& batch : plan.batches) {
        json["batches"].push_back({batch.size, batch.mapped});
    }
    return json.dump();
}

PlanData parse_plan(std::string_view text) {
    try {
        return plan_of(Json::parse(text));
    } catch (const nlohmann::json::exception& error) {
        user_error("cuda_kernel", "expected the text of a plan but got {}", error.what());
    }
}

cuda::CompileRequest compile_request(const PlanData& plan, const std::string& arch) {
    cuda::CompileRequest request;
    request.name = plan.file;
    request.users = plan.name;
    request.arch = arch;
    request.options = plan.options;
    request.headers = {{"tilewright.cuh", "#pragma once\n#include \"cuda/device/kernel.cuh\"\n"}};
    request.headers.insert(request.headers.end(), plan.headers.begin(), plan.headers.end());
    // Appended, so that lines of the source keep their numbers.
    request.source = plan.source + "\n#include \"cuda/device/check_parameters.cuh\"\n";
    const auto count = plan.inputs.size() + plan.outputs.size() + (plan.workspace_bytes ? 1 : 0) +
                       plan.attributes.size();
    for (const PlannedLaunch& launch : plan.launches) {
        const std::string what = launch.kernel.substr(0, launch.kernel.find('<'));
        if (std::find(request.kernels.begin(), request.kernels.end(), launch.kernel) !=
            request.kernels.end()) {
            continue;
        }
        std::string& text = request.source;
        text += fmt::format(
            "#line 1 \"parameters of {0}\"\n"
            "namespace twd_check_{1} {{ using P = twd::check::Parameters<decltype(&::{2})>; "
            "static_assert(P::kCount == {3}, \"expected {3} parameters of {0}: its inputs, "
            "outputs, workspace, then attributes\");\n",
            what, request.kernels.size(), launch.kernel, count);
        std::size_t next = 0;
        const auto check = [&](const std::string& condition, const std::string& parameter,
                               const std::string& wants) {
            text += fmt::format(
                "static_assert(P::kCount != {} || [] {{ using T = P::At<{}>; return {}; }}(), "
                "\"expected `{}`, parameter {} of {}, to be {}\");\n",
                count, next, condition, parameter, next + 1, what, wants);
            ++next;
        };
        const auto pointer = [&](const std::string& name, DType dtype, bool input) {
            const char* const kind = plan.batch_in_grid ? "kBatched" : "kRaw";
            check(
                fmt::format(
                    "twd::check::Pointee<T>::{} && {}twd::check::kConst<twd::check::Pointee<"
                    "T>::Type> && twd::check::points_at<T, {}, {}>()",
                    kind, input ? "" : "!", size_of(dtype), is_float(dtype)),
                name,
                fmt::format("{}{} to {}elements of {}", plan.batch_in_grid ? "a tw::batched" : "a",
                            plan.batch_in_grid ? "" : " pointer", input ? "const " : "",
                            tilewright::name(dtype)));
        };
        for (const PlannedArray& array : plan.inputs) pointer(array.name, array.type.dtype, true);
        for (const PlannedArray& array : plan.outputs) {
            pointer(array.name, array.type.dtype, false);
        }
        if (plan.workspace_bytes) {
            const bool batched = plan.batch_in_grid;
            check(fmt::format("twd::check::Pointee<T>::{} && "
                              "!twd::check::kConst<twd::check::Pointee<T>::Type>",
                              batched ? "kBatched" : "kRaw"),
                  "workspace", batched ? "a tw::batched" : "a pointer");
        }
        for (const PlannedAttribute& attribute : plan.attributes) {
            check(attribute.check, attribute.name, attribute.wants);
        }
        text += "}\n";
        request.kernels.push_back(launch.kernel);
    }
    return request;
}

}  // namespace tilewright::run
