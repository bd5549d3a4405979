package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// Docker are the settings of the provider docker.
type Docker struct {
	Host    string `yaml:"host" doc:"address of the Docker Engine; DOCKER_HOST, or docker's current context, when empty"`
	Prefix  string `yaml:"prefix" doc:"begins the names of what is made in the engine: servers that share one have different ones"`
	Image   string `yaml:"image" doc:"image of sandboxes that name none"`
	Runtime string `yaml:"runtime" doc:"the engine's runtime to use, like runsc or kata; its default when empty"`
	Plain   bool   `yaml:"plain" doc:"do without Atoll's program in containers, where it cannot run: sandboxes can do less then, see atoll doctor"`
	Guest   string `yaml:"guest" form:"path" doc:"Atoll's program for containers; when empty the one in this binary or beside it, or built from source where that is"`
}

func defaultDocker() Docker { return Docker{Prefix: "atoll", Image: docker.DefaultImage} }

func openDocker(cfg *Config, opts Options) (atoll.Provider, error) {
	d := cfg.Docker
	return docker.New(docker.Options{
		Dir:     filepath.Join(cfg.StateDir, "docker"),
		Guest:   sync.OnceValues(func() ([]byte, error) { return guestProgram(d.Guest, cfg.StateDir) }),
		Plain:   d.Plain,
		Host:    d.Host,
		Prefix:  d.Prefix,
		Image:   d.Image,
		Runtime: d.Runtime,
		Log:     opts.Log,
	})
}

// guestName is the file name of the guest's program.
const guestName = "atoll-guest"

// decompress returns the content of a zstd stream.
func decompress(data []byte) ([]byte, error) {
	r, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.DecodeAll(data, nil)
}

// guestProgram reads the guest's program: the one at path, else the one in this
// binary, else the one beside it, else one that is built from this module's
// source, if the current directory is in that.
func guestProgram(path, stateDir string) ([]byte, error) {
	if path != "" {
		return os.ReadFile(path)
	}
	if len(embeddedGuest) > 0 {
		return decompress(embeddedGuest)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(exe), guestName))
	if !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	out := filepath.Join(stateDir, "docker", guestName)
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "github.com/seed46cd37a8/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if said, buildErr := build.CombinedOutput(); buildErr != nil {
		return nil, fmt.Errorf("no %s: it is neither in %s nor beside it, and cannot be built from source (%w: %.200s): build atoll with make, run make guest, set docker.guest, or set docker.plain to do without",
			guestName, exe, buildErr, said)
	}
	return os.ReadFile(out)
}
