// Rows of a benchmark as they are printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/measure.h"

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

TEST(Report, RowsArePrintedOnceUnderOneHeading) {
    std::ostringstream out;
    Report report(&out);
    report.print();
    EXPECT_EQ(out.str(), "");  // a heading without rows says nothing
    report.add(row_of("first", "forward")).tflops = 12.5;
    report.print();
    EXPECT_THAT(out.str(), HasSubstr("12.5 TFLOP/s"));
    Row& ours = report.add(row_of("first", "backward"));
    ours.tflops = 0.5;
    ours.roof = 0.666;
    ours.baseline = "peer";
    ours.ratio = 1.5;
    Row& wrong = report.add(row_of("second", "build"));
    wrong.gbs = 3;
    wrong.ok = false;
    report.print();
    report.print();
    const std::string text = out.str();
    EXPECT_EQ(count_of(text, "x baseline"), 1);
    EXPECT_EQ(count_of(text, "first "), 2);
    EXPECT_EQ(count_of(text, "second"), 1);
    EXPECT_THAT(text, HasSubstr("500.0 GFLOP/s      67        1.50 peer"));
    EXPECT_THAT(text, HasSubstr("3.0 GB/s"));
    EXPECT_EQ(count_of(text, "FAILED"), 1);
    EXPECT_GT(text.find("FAILED"), text.find("second"));
    EXPECT_EQ(report.rows().size(), 3U);
}

TEST(Report, LongNamesWidenTheColumn) {
    std::ostringstream out;
    Report report(&out);
    report.add(row_of(std::string(50, 'x'), "forward"));
    report.add(row_of("short", "forward"));
    report.print();
    std::istringstream lines(out.str());
    std::string heading, longest, shorter;
    std::getline(lines, heading);
    std::getline(lines, longest);
    std::getline(lines, shorter);
    EXPECT_EQ(heading.find("operation"), 52U);
    EXPECT_EQ(longest.find("forward"), 52U);
    EXPECT_EQ(shorter.find("forward"), 52U);
}

TEST(Report, KeepsRowsWithoutAStream) {
    Report report(nullptr);
    report.add(row_of("a", "forward"));
    report.print();
    EXPECT_EQ(report.rows().size(), 1U);
}

}  // namespace
}  // namespace tilewright::cli
