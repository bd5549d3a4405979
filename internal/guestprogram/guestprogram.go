// Package guestprogram finds the guest's program, cmd/atoll-guest, which providers put into
// sandboxes. make build puts it into the programs that link this package.
package guestprogram

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// fileName is the name of the program's file.
const fileName = "atoll-guest"

// decompressZstd returns the content of a zstd stream.
func decompressZstd(data []byte) ([]byte, error) {
	r, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.DecodeAll(data, nil)
}

// Load returns the guest's program: the one at path, if that is not ""; else the one in this
// binary; else the one beside it; else one that it builds below stateDir from this module's
// source, if the current directory is in that.
func Load(path, stateDir string) ([]byte, error) {
	if path != "" {
		return os.ReadFile(path)
	}
	if len(embedded) > 0 {
		return decompressZstd(embedded)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(exe), fileName))
	if !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	out := filepath.Join(stateDir, "docker", fileName)
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "github.com/seed46cd37a8/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if said, buildErr := build.CombinedOutput(); buildErr != nil {
		return nil, fmt.Errorf("no %s: it is neither in %s nor beside it, and cannot be built from source (%w: %.200s): build atoll with make, run make guest, set docker.guest, or set docker.plain to do without",
			fileName, exe, buildErr, said)
	}
	return os.ReadFile(out)
}
