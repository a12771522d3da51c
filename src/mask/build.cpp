// Builds masks from large squares down: interval analysis refines only what is still undecided.
#include "mask/build.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>

#include "ir/passes/intervals.h"
#include "run/machine.h"
#include "support/debug_log.h"
#include "support/integer.h"
#include "support/memo.h"

namespace tilewright::mask {
namespace {

using ir::Interval;
using ir::Key;
using ir::Truth;

struct KeyHash {
    std::size_t operator()(const Key& key) const { return key.low; }
};
template <typename T>
using KeyMap = std::unordered_map<Key, T, KeyHash>;

/// Adjacent columns of pieces: either all full or still undecided.
struct Segment {
    std::int64_t first, end;
    bool full;
};

void append(std::vector<Segment>& segments, std::int64_t first, std::int64_t end, bool full) {
    if (!segments.empty() && segments.back().end == first && segments.back().full == full)
        segments.back().end = end;
    else
        segments.push_back({first, end, full});
}

/// Pieces of a row after the analysis. Partial ones have the numbers of groups of equal pieces.
struct Span {
    std::int64_t first, count;
    std::int64_t groups;  ///< index of the first number in `group_of`; -1: full
};

/// The result of one task: the rows of a square, in order.
struct Fragment {
    std::vector<std::size_t> row_end;  ///< indices into `spans`
    std::vector<Span> spans;
    std::vector<std::uint32_t> group_of;
    std::vector<Key> keys;  ///< of each group
    std::vector<Origin> origins;
    std::int64_t boxes = 0;
};

/// Rows [row, row + size) of one head, with the columns that larger squares left undecided.
struct Task {
    std::int64_t b, h, row, size;
    std::vector<Segment> segments;
};

class Analysis {
  public:
    Analysis(const ir::Intervals& intervals, std::int64_t q_len, std::int64_t kv_len)
        : q_len_(q_len),
          kv_len_(kv_len),
          rows_(ceil_div(q_len, kAtom)),
          columns_(ceil_div(kv_len, kAtom)),
          coarse_(intervals),
          fine_(intervals) {}

    /// Analyses squares down to `leaf` rows and passes each square of that size to `done`.
    template <typename Done>
    void refine(const Task& task, std::int64_t leaf, const Done& done) {
        if (task.row >= rows_) return;
        Task next = task;
        next.segments.clear();
        set(coarse_, task);
        for (const Segment& segment : task.segments) {
            if (segment.full) {
                append(next.segments, segment.first, segment.end, true);
                continue;
            }
            for (std::int64_t c = segment.first; c < segment.end; c += task.size) {
                const std::int64_t end = std::min(c + task.size, columns_);
                coarse_.set(3, keys(c, end));
                ++boxes;
                const Truth truth = coarse_.truth();
                if (truth != Truth::never) append(next.segments, c, end, truth == Truth::always);
            }
        }
        if (task.size == leaf) return done(next);
        const std::int64_t half = task.size / 2;
        next.size = half;
        refine(next, leaf, done);
        next.row += half;
        refine(next, leaf, done);
    }

    /// Finishes one row of pieces: the undecided ones get their keys.
    void finish(const Task& row, Fragment& out, KeyMap<std::uint32_t>& groups) {
        bool set_row = false;
        const std::int64_t height = std::min(kAtom, q_len_ - row.row * kAtom);
        for (const Segment& segment : row.segments) {
            if (segment.full) {
                add(out, segment.first, segment.end - segment.first, -1);
                continue;
            }
            if (!set_row) set(fine_, row);
            set_row = true;
            for (std::int64_t c = segment.first; c < segment.end; ++c) {
                fine_.set(3, keys(c, c + 1));
                ++boxes;
                const Truth truth = fine_.truth(true);
                if (truth == Truth::never) continue;
                if (truth == Truth::always) {
                    add(out, c, 1, -1);
                    continue;
                }
                Key key = fine_.key();
                // Pieces of different extents are different pieces.
                const std::int64_t width = std::min(kAtom, kv_len_ - c * kAtom);
                key.high ^= static_cast<std::uint64_t>((kAtom - height) * kAtom + kAtom - width);
                const auto [entry, fresh] =
                    groups.try_emplace(key, static_cast<std::uint32_t>(out.keys.size()));
                if (fresh) {
                    out.keys.push_back(key);
                    out.origins.push_back({row.b, row.h, row.row * kAtom, c * kAtom});
                }
                add(out, c, 1, std::ssize(out.group_of));
                out.group_of.push_back(entry->second);
            }
        }
        out.row_end.push_back(out.spans.size());
    }

    std::int64_t boxes = 0;

  private:
    void set(ir::Intervals::Evaluation& evaluation, const Task& task) const {
        evaluation.set(0, Interval::integers(task.b, task.b));
        evaluation.set(1, Interval::integers(task.h, task.h));
        evaluation.set(2, Interval::integers(task.row * kAtom,
                                             std::min((task.row + task.size) * kAtom, q_len_) - 1));
    }
    Interval keys(std::int64_t column, std::int64_t end) const {
        return Interval::integers(column * kAtom, std::min(end * kAtom, kv_len_) - 1);
    }
    static void add(Fragment& out, std::int64_t first, std::int64_t count, std::int64_t groups) {
        const std::size_t row_start = out.row_end.empty() ? 0 : out.row_end.back();
        if (out.spans.size() > row_start) {
            Span& last = out.spans.back();
            if (last.first + last.count == first && (last.groups < 0) == (groups < 0)) {
                last.count += count;
                return;
            }
        }
        out.spans.push_back({first, count, groups});
    }

    std::int64_t q_len_, kv_len_, rows_, columns_;
    ir::Intervals::Evaluation coarse_, fine_;
};

/// The groups of all fragments, merged where keys are equal.
struct Groups {
    std::vector<std::vector<std::uint32_t>> number;  ///< for the groups of each fragment
    std::vector<Origin> origins;

    explicit Groups(const std::vector<Fragment>& fragments) {
        KeyMap<std::uint32_t> known;
        for (const Fragment& fragment : fragments) {
            auto& numbers = number.emplace_back();
            numbers.reserve(fragment.keys.size());
            for (std::size_t i = 0; i < fragment.keys.size(); ++i) {
                const auto [entry, fresh] =
                    known.try_emplace(fragment.keys[i], static_cast<std::uint32_t>(origins.size()));
                if (fresh) origins.push_back(fragment.origins[i]);
                numbers.push_back(entry->second);
            }
        }
    }
};

std::vector<AtomId> atoms_of(const MaskFunction& mask, std::span<const Origin> origins,
                             MaskData& data) {
    std::vector<AtomId> ids;
    if (origins.empty()) return ids;
    if (debug_log_on()) {
        const auto count = std::ssize(origins);
        const std::int64_t pieces = data.batch * data.heads * data.rows() * data.columns();
        // Some pieces at the borders of a mask are expected.
        const bool many = count > 64 && 8 * count > pieces;
        debug_log("mask", "{}{} of {} pieces of 64 x 64 are evaluated pair by pair{}",
                  many ? "slow path: " : "", count, pieces,
                  many ? ", since ranges of indices do not decide what attends there" : "");
    }
    const ExactMask exact(mask);
    constexpr std::size_t kAtOnce = 16384;  // 8 MB of atoms
    ids.reserve(origins.size());
    for (std::size_t first = 0; first < origins.size(); first += kAtOnce) {
        const auto part = origins.subspan(first, std::min(kAtOnce, origins.size() - first));
        const std::vector<Atom> atoms = exact.evaluate(part);
        for (std::size_t i = 0; i < part.size(); ++i) {
            Atom atom = atoms[i];
            const std::int64_t height = data.row_size(part[i].q / kAtom),
                               width = data.column_size(part[i].kv / kAtom);
            if (height < kAtom || width < kAtom) {
                const Atom clip = corner_atom(height, width);
                for (std::size_t r = 0; r < atom.size(); ++r) atom[r] &= clip[r];
            }
            ids.push_back(data.atoms.intern(atom));
        }
    }
    return ids;
}

void write_row(const Fragment& fragment, std::size_t row, std::int64_t row_number,
               const std::vector<std::uint32_t>& numbers, const std::vector<AtomId>& ids,
               MaskData& data) {
    RowWriter writer(data);
    const bool ragged_row = data.row_size(row_number) < kAtom;
    const std::int64_t whole_columns = data.kv_len / kAtom;
    for (std::size_t s = row == 0 ? 0 : fragment.row_end[row - 1]; s < fragment.row_end[row]; ++s) {
        const Span& span = fragment.spans[s];
        if (span.groups >= 0) {
            for (std::int64_t i = 0; i < span.count; ++i) {
                const std::uint32_t group = fragment.group_of[span.groups + i];
                writer.atom(span.first + i, ids[numbers[group]]);
            }
            continue;
        }
        const std::int64_t end = span.first + span.count;
        const std::int64_t whole = ragged_row ? span.first : std::min(end, whole_columns);
        writer.full(span.first, whole - span.first);
        for (std::int64_t c = std::max(whole, span.first); c < end; ++c)
            writer.atom(c, data.full_atom(row_number, c));
    }
    writer.end_row();
}

}  // namespace

MaskData build(const MaskFunction& mask, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
               std::int64_t kv_len, BuildReport* report) {
    const ir::Intervals intervals(*mask.function, mask.range_trees());

    MaskData data;
    data.batch = intervals.depends_on(0) ? batch : 1;
    data.heads = intervals.depends_on(1) ? heads : 1;
    data.q_len = q_len;
    data.kv_len = kv_len;

    // Sequentially, until there are enough squares for all threads.
    const std::int64_t rows = data.rows(), columns = data.columns();
    const auto whole = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1))));
    const std::int64_t leaf = std::max<std::int64_t>(1, std::min<std::int64_t>(whole, 256));
    std::vector<Task> tasks;
    Analysis top(intervals, q_len, kv_len);
    for (std::int64_t b = 0; b < data.batch; ++b) {
        for (std::int64_t h = 0; h < data.heads; ++h) {
            top.refine({b, h, 0, whole, {{0, columns, false}}}, leaf,
                       [&](const Task& task) { tasks.push_back(task); });
        }
    }
    std::vector<Fragment> fragments(tasks.size());
    run::parallel_for(std::ssize(tasks), [&](std::int64_t i) {
        const Task& task = tasks[i];
        Fragment& fragment = fragments[i];
        Analysis analysis(intervals, q_len, kv_len);
        KeyMap<std::uint32_t> groups;
        analysis.refine(task, 1, [&](const Task& row) { analysis.finish(row, fragment, groups); });
        fragment.boxes = analysis.boxes;
    });

    const Groups groups(fragments);
    const std::vector<AtomId> ids = atoms_of(mask, groups.origins, data);
    for (std::size_t i = 0; i < fragments.size(); ++i) {
        for (std::size_t row = 0; row < fragments[i].row_end.size(); ++row) {
            write_row(fragments[i], row, tasks[i].row + static_cast<std::int64_t>(row),
                      groups.number[i], ids, data);
        }
    }
    if (data.row_begin.empty()) data.row_begin.push_back(0);
    if (report) {
        *report = {top.boxes, std::ssize(data.ids), std::ssize(groups.origins)};
        for (const Fragment& fragment : fragments) report->boxes += fragment.boxes;
    }
    return data;
}

std::shared_ptr<const MaskData> build_kept(const MaskFunction& mask, std::int64_t batch,
                                           std::int64_t heads, std::int64_t q_len,
                                           std::int64_t kv_len) {
    const auto make = [&] {
        return std::make_shared<const MaskData>(build(mask, batch, heads, q_len, kv_len));
    };
    // Arrays may be written between two calls.
    if (!mask.arrays.empty() || mask.text.empty()) return make();
    constexpr std::int64_t kMostBytes = 4 << 20;
    using Data = std::shared_ptr<const MaskData>;
    using Request = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::string>;
    static auto* const kBuilt = new Memo<Request, Data>("masks built", 32, [](const Data& data) {
        return static_cast<std::size_t>(data->nbytes());
    });
    const Request request{batch, heads, q_len, kv_len, mask.text};
    if (const std::optional<Data> known = kBuilt->find(request)) return *known;
    Data data = make();
    return data->nbytes() > kMostBytes ? data : kBuilt->put(request, std::move(data));
}

}  // namespace tilewright::mask
