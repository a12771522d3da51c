// Printed rows of benchmarks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <vector>

#include "cli/bench/measure.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

Row row_of(const std::string& case_name, const std::string& operation) {
    Row row;
    row.case_name = case_name;
    row.operation = operation;
    row.impl = "tilewright";
    return row;
}

int count_of(const std::string& text, const std::string& part) {
    int count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

TEST(Report, RowsArePrintedOnceUnderTheirCase) {
    std::ostringstream out;
    Report report(&out);
    report.print();
    EXPECT_EQ(out.str(), "");
    report.add(row_of("first", "forward")).tflops = 12.5;
    report.print();
    EXPECT_THAT(out.str(), HasSubstr("12.5 TFLOP/s"));
    Row& ours = report.add(row_of("first", "backward"));
    ours.tflops = 0.5;
    ours.roof = 0.666;
    ours.roof_name = "memcpy";
    ours.baseline = "peer";
    ours.ratio = 1.5;
    Row& wrong = report.add(row_of("second", "build"));
    wrong.gbs = 3;
    wrong.ok = false;
    report.print();
    report.print();
    const std::string text = out.str();
    EXPECT_EQ(count_of(text, "first\n"), 1);
    EXPECT_EQ(count_of(text, "forward"), 1);
    EXPECT_EQ(count_of(text, "backward"), 1);
    EXPECT_EQ(count_of(text, "second"), 1);
    EXPECT_THAT(text, HasSubstr("500.0 GFLOP/s   67% of memcpy  1.50 x peer"));
    EXPECT_THAT(text, HasSubstr("3.0 GB/s"));
    EXPECT_EQ(count_of(text, "FAILED"), 1);
    EXPECT_GT(text.find("FAILED"), text.find("second"));
    EXPECT_EQ(report.rows().size(), 3U);
}

TEST(Report, LinesFitAHundredColumns) {
    std::ostringstream out;
    Report report(&out);
    Row row = row_of("case", "backward");
    row.impl = row.baseline.emplace("torch-compile");
    row.ms = 123456.789;
    row.gbs = 1234.5;
    row.roof = 1;
    row.roof_name = "device copy";
    row.ratio = 12.34;
    row.error = 1e-7;
    row.sm_mhz = 1755;
    row.sustained = 1234.5;
    row.ok = false;
    report.add(row);
    report.print();
    std::istringstream lines(out.str());
    std::size_t longest = 0;
    for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
    EXPECT_LE(longest, 100U) << out.str();
    for (const char* part :
         {"123456.789 ms", "1234.5 GB/s", "100% of device copy", "12.34 x torch-compile",
          "error 1.0e-07", "FAILED", "1755 MHz", "1234.5 sustained"})
        EXPECT_THAT(out.str(), HasSubstr(part));
}

TEST(Report, CompletedRowsAreHandedOn) {
    std::vector<std::size_t> counts;
    Report report(nullptr, [&](const Report& so_far) { counts.push_back(so_far.rows().size()); });
    report.print();
    report.add(row_of("a", "forward"));
    report.add(row_of("b", "forward"));
    report.print();
    report.print();
    report.add(row_of("c", "forward"));
    report.print();
    EXPECT_EQ(counts, (std::vector<std::size_t>{2, 3}));
}

TEST(Report, KeepsRowsWithoutAStream) {
    Report report(nullptr);
    report.add(row_of("a", "forward"));
    report.print();
    EXPECT_EQ(report.rows().size(), 1U);
}

}  // namespace
}  // namespace tilewright::cli
