#!/bin/sh
# Runs the checks of this directory with the published Python client, unmodified: its
# newest release and the oldest that is supported. Nothing is left in the checkout.
#
#   FELIX_BIN       the binary to check; built from this tree when unset
#   CLIENTS         versions of felix-client, "newest" for the latest (default: newest 0.6.2 0.6.0)
#   PYTEST_ARGS     more arguments for pytest
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/felix-interop.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

if [ -z "${FELIX_BIN:-}" ]; then
	FELIX_BIN="$work/felix"
	(cd "$here/.." && go build -o "$FELIX_BIN" ./cmd/felix)
fi
export FELIX_BIN PYTHONDONTWRITEBYTECODE=1

done=" "
for client in ${CLIENTS:-newest 0.6.2 0.6.0}; do
	venv="$work/venv-$client"
	python3 -m venv "$venv"
	case $client in
	newest) package=felix-client ;;
	*) package="felix-client==$client" ;;
	esac
	"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt" "$package"
	version=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("felix-client"))')
	case $done in
	*" $version "*) continue ;;
	esac
	done="$done$version "
	echo "== felix-client $version"
	# shellcheck disable=SC2086 # arguments are meant to split
	"$venv/bin/python" -m pytest -p no:cacheprovider -q --basetemp "$work/tmp-$client" ${PYTEST_ARGS:-} "$here"
done
