package vm

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Config describes the machines of projects.
type Config struct {
	// DataDir holds the disks: project-ID.img, which is read-only, and
	// project-ID-data.img. Needed.
	DataDir string
	// ConsoleLogDir holds project-ID/console.log, to which a machine's output is appended. "" means
	// DefaultConsoleLogDir.
	ConsoleLogDir string
	// KernelPath is the kernel to boot. Needed.
	KernelPath string
	// InitrdPath is the initial file system; "" is none.
	InitrdPath string
	// BaseDiskPath is the root file system, with an engine in it, from which the driver makes that
	// of each project. Needed.
	BaseDiskPath string
	// IdleTimeout is the time after which a machine without a running sandbox ends, such as "30m".
	// "" means DefaultIdleTimeout, "0" never.
	IdleTimeout string
	CPUCount    int // of each; 0 means DefaultCPUCount
	MemoryMB    int // of each, in MiB; 0 means DefaultMemoryMB
}

// The defaults of a Config.
const (
	DefaultIdleTimeout = 30 * time.Minute
	DefaultCPUCount    = 2
	DefaultMemoryMB    = 2048
)

// DefaultConsoleLogDir returns a directory below $XDG_STATE_HOME, which defaults to ~/.local/state.
func DefaultConsoleLogDir() (string, error) {
	state, err := fsutil.StateHome()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "atoll", "vm"), nil
}

// WithDefaults returns c with its defaults filled in, and how long an idle machine stays, or 0 for
// ever. Kinds: ErrInvalid, if no machine can be made of c; the error says what to do.
func (c Config) WithDefaults() (Config, time.Duration, error) {
	c, idle, err := c.Sized()
	if err != nil {
		return Config{}, 0, err
	}
	if err := c.checkBootFiles(); err != nil {
		return Config{}, 0, err
	}
	return c, idle, nil
}

// Sized is like WithDefaults for callers that bring their own kernel and disk: it checks neither.
func (c Config) Sized() (Config, time.Duration, error) {
	bad := func(format string, args ...any) (Config, time.Duration, error) {
		return Config{}, 0, atoll.Errorf("vm", "", atoll.ErrInvalid, format, args...)
	}
	c.CPUCount, c.MemoryMB = cmp.Or(c.CPUCount, DefaultCPUCount), cmp.Or(c.MemoryMB, DefaultMemoryMB)
	if c.ConsoleLogDir == "" {
		dir, err := DefaultConsoleLogDir()
		if err != nil {
			return bad("no directory for consoles: %w", err)
		}
		c.ConsoleLogDir = dir
	}
	idle := DefaultIdleTimeout
	if c.IdleTimeout != "" {
		var d atoll.Duration
		if err := d.UnmarshalText([]byte(c.IdleTimeout)); err != nil || d < 0 {
			return bad("idle timeout %q: write it like 30m, or 0 for never", c.IdleTimeout)
		}
		idle = time.Duration(d)
	}
	switch {
	case c.DataDir == "":
		return bad("no data directory given")
	case c.CPUCount < 1 || c.CPUCount > MaxCPUs:
		return bad("%d CPUs: must be within 1..%d, or 0 for %d", c.CPUCount, MaxCPUs, DefaultCPUCount)
	case c.MemoryMB < MinMemory>>20 || c.MemoryMB > MaxMemory>>20:
		return bad("%d MiB of memory: must be within %d..%d, or 0 for %d", c.MemoryMB, MinMemory>>20, MaxMemory>>20, DefaultMemoryMB)
	}
	return c, idle, nil
}

// checkBootFiles returns an error unless the kernel, the base disk and, if given, the initrd are
// regular files with content.
func (c Config) checkBootFiles() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("vm", "", atoll.ErrInvalid, format, args...)
	}
	switch {
	case c.KernelPath == "":
		return bad("no kernel given")
	case c.BaseDiskPath == "":
		return bad("no base disk given: it must hold an engine")
	}
	for what, path := range map[string]string{"kernel": c.KernelPath, "initial file system": c.InitrdPath, "base disk": c.BaseDiskPath} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return bad("%s: %w", what, err)
		}
		if !info.Mode().IsRegular() || info.Size() == 0 {
			return bad("%s %s: is not a file, or empty", what, path)
		}
	}
	return nil
}

// RootDisk returns the path of the disk with a project's root file system.
func (c Config) RootDisk(project string) string {
	return filepath.Join(c.DataDir, "project-"+project+".img")
}

// DataDisk returns the path of the disk with a project's lasting data.
func (c Config) DataDisk(project string) string {
	return filepath.Join(c.DataDir, "project-"+project+"-data.img")
}

// ConsoleLog returns the path of the file with the output of a project's machine.
func (c Config) ConsoleLog(project string) string {
	return filepath.Join(c.ConsoleLogDir, "project-"+project, "console.log")
}
