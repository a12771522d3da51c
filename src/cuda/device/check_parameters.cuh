// Compares the parameters of a user's kernel with what will be passed, while it compiles.
#pragma once

#include "cuda/device/kernel.cuh"

namespace twd::check {

template <class T>
struct Plain {
    using Type = T;
};
template <class T>
struct Plain<const T> {
    using Type = T;
};
template <class A, class B>
inline constexpr bool same = false;
template <class A>
inline constexpr bool same<A, A> = true;

template <int kIndex, class... T>
struct At {
    using Type = void;
};
template <class First, class... Rest>
struct At<0, First, Rest...> {
    using Type = First;
};
template <int kIndex, class First, class... Rest>
requires(kIndex > 0) struct At<kIndex, First, Rest...> : At<kIndex - 1, Rest...> {
};

template <class F>
struct Parameters;
template <class... P>
struct Parameters<void (*)(P...)> {
    static constexpr int kCount = sizeof...(P);
    template <int kIndex>
    using At = typename check::At<kIndex, P...>::Type;
};

template <class T>
inline constexpr int kSize = sizeof(T);
template <>
inline constexpr int kSize<void> = 0;
template <class T>
inline constexpr bool kIsFloat = same<T, float> || same<T, double>;
template <class T>
inline constexpr bool kIsNumber =
    kIsFloat<T> || same<T, bool> || same<T, char> || same<T, signed char> ||
    same<T, unsigned char> || same<T, short> || same<T, unsigned short> || same<T, int> ||
    same<T, unsigned> || same<T, long> || same<T, unsigned long> || same<T, long long> ||
    same<T, unsigned long long>;

/// The element type of a parameter that is an array; `const` for inputs.
template <class P>
struct Pointee {
    static constexpr bool kRaw = false, kBatched = false;
    using Type = void;
};
template <class T>
struct Pointee<T*> {
    static constexpr bool kRaw = true, kBatched = false;
    using Type = T;
};
template <class T>
struct Pointee<batched<T>> {
    static constexpr bool kRaw = false, kBatched = true;
    using Type = T;
};
template <class T>
inline constexpr bool kConst = false;
template <class T>
inline constexpr bool kConst<const T> = true;

/// Does an array have such elements, vectors or structs of them, or bytes to hold them?
template <class P, int kBytes, bool kFloat>
constexpr bool points_at() {
    using T = typename Plain<typename Pointee<P>::Type>::Type;
    if constexpr (kIsNumber<T>) {
        return kSize<T> == kBytes && (kBytes < 4 || kIsFloat<T> == kFloat);
    } else {
        return kSize<T> % kBytes == 0;
    }
}

/// A value of an enumeration as a template argument, whatever enumeration the parameter has.
struct Enumerator {
    int value;
    template <class T>
    constexpr operator T() const {
        return static_cast<T>(value);
    }
};

template <class P, int kBytes, bool kFloat>
constexpr bool is_number() {
    if constexpr (kIsNumber<P>) {
        return kSize<P> == kBytes && kIsFloat<P> == kFloat;
    } else {
        return !kFloat && __is_enum(P) && kSize<P> == kBytes;
    }
}

}  // namespace twd::check
