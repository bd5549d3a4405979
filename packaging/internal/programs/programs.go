// Package programs builds Atoll's programs for other platforms, reproducibly: the same source and
// compiler make the same bytes.
package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// module is the path of this module.
const module = "github.com/seed46cd37a8/atoll"

// A Platform is an operating system and an architecture, as Go names them.
type Platform struct{ OS, Arch string }

// String returns the platform as OS/ARCH.
func (p Platform) String() string { return p.OS + "/" + p.Arch }

// FileName returns the name of a program's file on the platform.
func (p Platform) FileName(program string) string {
	if p.OS == "windows" {
		return program + ".exe"
	}
	return program
}

// HasClient reports whether atoll is only the client on the platform, and atoll-server beside it the whole program. It is
// not so on Windows, where a program cannot replace itself with another one.
func (p Platform) HasClient() bool { return p.OS != "windows" }

// sourceOf returns the command that a program is built from, and the build tags.
func (p Platform) sourceOf(program string) (command, tags string) {
	const whole = "embedguest,embedengine"
	switch {
	case program == "atoll-server":
		return "atoll", whole
	case program == "atoll" && p.HasClient():
		return "atoll", "client"
	case program == "atoll-engine":
		return program, "embedfilters"
	case program == "atoll-guest", program == "atoll-native":
		return program, ""
	}
	return program, whole
}

// packages are the packages of internal that have a program inside, by its name.
var packages = map[string]string{"atoll-guest": "guestprogram", "atoll-engine": "engineprogram", "atoll-native": "engineprogram"}

// listEmbedded returns the names of the programs that the programs for the platform have inside.
func (p Platform) listEmbedded() []string {
	names := []string{"atoll-guest"}
	if p.OS == "linux" {
		names = append(names, "atoll-engine", "atoll-native")
	}
	return names
}

// Build builds programs of cmd for a platform into dir, and returns the path of each. They contain, for their architecture,
// the guest's program and for Linux those of the engines; the result has the paths of these, too. version is what the programs say
// of themselves; "" if this is not a release. The current directory must be in the module. Settings for other builds, such
// as GOFLAGS, have no effect.
func Build(ctx context.Context, dir string, p Platform, version string, programs ...string) (map[string]string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("find the module's directory: %w", err)
	}
	module := strings.TrimSpace(string(root))
	var filters []string // flags
	if p.OS == "linux" {
		if filters, err = buildFilters(ctx, dir, module); err != nil {
			return nil, err
		}
	}
	inside, replace := map[string]string{}, map[string]string{}
	for _, name := range p.listEmbedded() {
		made, err := runBuild(ctx, dir, Platform{"linux", p.Arch}, version, filters, []string{name})
		if err != nil {
			return nil, err
		}
		inside[name] = made[name]
		packed, sum := filepath.Join(dir, name+".zst"), filepath.Join(dir, name+".sum")
		if err := Compress(made[name], packed); err != nil {
			return nil, err
		}
		if err := WriteSum(made[name], sum); err != nil {
			return nil, err
		}
		target := filepath.Join(module, "internal", packages[name], name)
		replace[target+".zst"], replace[target+".sum"] = packed, sum
	}
	overlay, err := writeOverlay(filepath.Join(dir, "overlay.json"), replace)
	if err != nil {
		return nil, err
	}
	made, err := runBuild(ctx, dir, p, version, []string{overlay}, programs)
	if err != nil {
		return nil, err
	}
	maps.Copy(made, inside)
	return made, nil
}

// buildFilters generates gVisor's seccomp programs, in dir, and returns the flags to build an engine with them. They are
// for the architecture of this machine; engines of another one ignore them.
func buildFilters(ctx context.Context, dir, module string) (flags []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	const packageDir = "provider/gvisor/internal/"
	cmd := exec.CommandContext(ctx, "go", "run", "./"+packageDir+"filters/generate")
	cmd.Dir, cmd.Stderr = module, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH=")
	filters, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("generate filters: %w", err)
	}
	file := filepath.Join(dir, "filters.json")
	if err := os.WriteFile(file, filters, 0o644); err != nil {
		return nil, err
	}
	overlay, err := writeOverlay(filepath.Join(dir, "filters-overlay.json"), map[string]string{filepath.Join(module, packageDir, "runsc", "filters.json"): file})
	return []string{overlay}, err
}

// writeOverlay writes a file for go build, in which files of a tree stand for others, and returns the flag with it.
func writeOverlay(file string, replace map[string]string) (flag string, err error) {
	data, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	return "-overlay=" + file, os.WriteFile(file, data, 0o644)
}

// runBuild builds programs with more flags of go build.
func runBuild(ctx context.Context, dir string, p Platform, version string, flags, programs []string) (map[string]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	gvisor, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor").Output()
	if err != nil {
		return nil, fmt.Errorf("find the version of gVisor: %w", err)
	}
	link := "-ldflags=-s -w -buildid= -X main.release=" + version + " -X main.gvisorVersion=" + strings.TrimSpace(string(gvisor))
	made := map[string]string{}
	for _, name := range programs {
		made[name] = filepath.Join(dir, p.FileName(name))
		command, tags := p.sourceOf(name)
		args := []string{"build", "-trimpath", link, "-tags=" + tags, "-o", made[name]}
		cmd := exec.CommandContext(ctx, "go", append(append(args, flags...), module+"/cmd/"+command)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=auto", "GOWORK=off", "GOOS="+p.OS, "GOARCH="+p.Arch, "GOAMD64=v1", "GOARM64=v8.0")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build %s for %s: %w", name, p, err)
		}
	}
	return made, nil
}

// Compress writes a zstd copy of a file. It replaces an older copy in one step, or leaves it if it
// is the same.
func Compress(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	return replaceFile(to, w.EncodeAll(data, nil))
}

// WriteSum writes the SHA-256 of a file, in hex, as Compress writes its copy.
func WriteSum(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return replaceFile(to, fmt.Appendf(nil, "%x", sha256.Sum256(data)))
}

// replaceFile writes a file in one step, unless it has that content, so that go need not build what contains it again.
func replaceFile(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	part := path + ".part" // a concurrent build finds the old file or the new one
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
