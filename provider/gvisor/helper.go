//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// modulePath is the path of this module.
const modulePath = "github.com/seed46cd37a8/atoll"

// helperBuildTime bounds a build of the helper, which downloads the modules of atoll, too.
const helperBuildTime = 15 * time.Minute

// buildHelper returns the path of an engine program of a version of this module, below dir. If it does not
// exist, buildHelper builds it with go install, which takes some minutes. Other calls, also of other
// programs, wait meanwhile.
func buildHelper(dir, version string, log *slog.Logger) (string, error) {
	if version == "" {
		return "", errDynamic
	}
	path := helperPath(dir, version)
	dir = filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock, err := fsutil.WaitLock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", fmt.Errorf("%w; atoll could build one, but there is no go in PATH", errDynamic)
	}
	made := filepath.Join(dir, "making")
	if err := os.RemoveAll(made); err != nil { // of a program that was killed
		return "", err
	}
	if err := os.Mkdir(made, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	target := modulePath + "/cmd/atoll-engine@" + version
	log.Warn("this atoll is built with cgo, which gVisor cannot use: building a static engine, once, in some minutes", "with", "CGO_ENABLED=0 go install "+target)
	ctx, cancel := context.WithTimeout(context.Background(), helperBuildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", target)
	cmd.Dir = made
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+made, "GOFLAGS=-mod=mod", "GOWORK=off", "GOOS=", "GOARCH=")
	cmd.WaitDelay = time.Second // programs that go started may hold its output open
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end in %v", helperBuildTime)
		}
		return "", fmt.Errorf("%w; go install %s: %w: %s", errDynamic, target, err, lastLine(out))
	}
	return path, os.Rename(filepath.Join(made, "atoll-engine"), path)
}

// helperPath returns the path of the helper of a version below dir.
func helperPath(dir, version string) string {
	return filepath.Join(dir, "helper", "atoll-engine-"+version)
}

// helperIsMissing reports whether buildHelper would have to build the helper, and could.
func helperIsMissing(dir, version string) bool {
	_, err := os.Stat(helperPath(dir, version))
	_, goErr := exec.LookPath("go")
	return version != "" && goErr == nil && errors.Is(err, fs.ErrNotExist)
}

// lastLine returns the last line of the output of a program.
func lastLine(out []byte) string {
	out = bytes.TrimSpace(out)
	return string(out[bytes.LastIndexByte(out, '\n')+1:])
}

// ownVersion returns the moduleVersion of this program.
func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return moduleVersion(info)
}

// moduleVersion returns the version of this module in a program that others can fetch, or "".
func moduleVersion(info *debug.BuildInfo) string {
	version := ""
	if info.Main.Path == modulePath {
		version = info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == modulePath && dep.Replace == nil {
			version = dep.Version
		}
	}
	if version == "(devel)" || strings.Contains(version, "+") { // a working tree, perhaps with changes
		return ""
	}
	return version
}
