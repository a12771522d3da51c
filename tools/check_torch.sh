#!/bin/sh
# Runs the tests of the PyTorch front end with the oldest and the newest supported torch, each in
# its own environment with the package of .venv.
#
# usage: tools/check_torch.sh [VERSION...] [-- PYTEST ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."

versions=
while [ $# -gt 0 ] && [ "$1" != -- ]; do versions="$versions $1"; shift; done
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- tests/python/torch tests/python/test_torch_agreement.py
./dev python
package=$(.venv/bin/python -c 'import pathlib, tilewright; print(pathlib.Path(tilewright.__file__).parent)')
status=0
for version in ${versions:-2.11.0 2.15.0}; do
    folder=build/torch-$version
    grep -v '^#\|^torch==' tools/torch-requirements.txt >"build/torch-$version.txt"
    printf 'torch==%s\nml_dtypes\nnumpy\npytest\n' "$version" >>"build/torch-$version.txt"
    if ! cmp -s "build/torch-$version.txt" "$folder/requirements.txt"; then
        echo "check_torch.sh: installing torch $version in $folder" >&2
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check -r "build/torch-$version.txt"
        cp "build/torch-$version.txt" "$folder/requirements.txt"
    fi
    # The package is that of .venv, which has the same Python.
    ln -sfn "$package" "$(echo "$folder"/lib/python3*/site-packages)/tilewright"
    echo "check_torch.sh: torch $version" >&2
    "$folder/bin/python" -m pytest "$@" || status=1
done
exit $status
