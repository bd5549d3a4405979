package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strings"
)

// wheelName is the name of the package at PyPI, with underscores for hyphens.
const wheelName = "atoll_cli"

// wheelTags are pip's names of the platforms, by Go's. A static program runs with every libc. Go's programs
// need macOS 12.
var wheelTags = map[string][]string{
	"linux/amd64":   {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"},
	"linux/arm64":   {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"},
	"darwin/amd64":  {"macosx_12_0_x86_64"},
	"darwin/arm64":  {"macosx_12_0_arm64"},
	"windows/amd64": {"win_amd64"},
	"windows/arm64": {"win_arm64"},
}

// writeWheels writes a Python wheel with atoll for each platform.
func (r *release) writeWheels(context.Context) error {
	for _, b := range r.built {
		if err := r.writeWheel(b); err != nil {
			return err
		}
	}
	return nil
}

// writeWheel writes the wheel for a platform: https://packaging.python.org/specifications/binary-distribution-format
func (r *release) writeWheel(b build) error {
	version, tags := pythonVersion(r.version), wheelTags[b.String()]
	base := wheelName + "-" + version
	var wheel bytes.Buffer
	wheel.WriteString("Wheel-Version: 1.0\nGenerator: atoll\nRoot-Is-Purelib: false\n")
	for _, tag := range tags {
		fmt.Fprintf(&wheel, "Tag: py3-none-%s\n", tag)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: %s\nHome-page: %s\nLicense: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n%s",
		strings.ReplaceAll(wheelName, "_", "-"), version, about, forge, readme)
	info := base + ".dist-info/"
	files := append(b.mainFiles(base+".data/scripts"), file{name: info + "METADATA", data: []byte(metadata)}, file{name: info + "WHEEL", data: wheel.Bytes()})
	var record bytes.Buffer
	for _, f := range files {
		data, err := f.readContent()
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files = append(files, file{name: info + "RECORD", data: record.Bytes()})
	name := fmt.Sprintf("%s-py3-none-%s.whl", base, strings.Join(tags, "."))
	return r.createFile(name, func(w io.Writer) error { return writeZip(w, r.time, files) })
}

// pythonVersion returns a version as Python writes it: 1.2.3rc1 for 1.2.3-rc.1. Other pre-releases
// become development versions: 1.2.3.dev0.
func pythonVersion(version string) string {
	number, pre, ok := strings.Cut(version, "-")
	if !ok {
		return version
	}
	kind, n, _ := strings.Cut(pre, ".")
	letters := map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[kind]
	if letters == "" || strings.Trim(n, "0123456789") != "" {
		return number + ".dev0"
	}
	return number + letters + cmp.Or(n, "0")
}
