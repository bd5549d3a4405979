package config

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Entry is one provider that a Config can name.
type Entry struct {
	Name string
	// Systems are the operating systems that it is there on, by GOOS, and Why no others;
	// none means all.
	Systems []string
	Why     string
	// Named says that it is used only where it is named, since it does not isolate, or is
	// not of this machine.
	Named bool

	open  func(cfg *Config, opts Options) (atoll.Provider, error)
	table func(cfg *Config) any // the settings of a plugin of Atoll's own; nil for others
}

// Open makes the provider from its table in cfg. It touches nothing but the state
// directory. Kinds: ErrUnavailable, where On says so.
func (e Entry) Open(cfg *Config, opts Options) (atoll.Provider, error) {
	if p := e.On(runtime.GOOS); !p.OK {
		return nil, atoll.Errorf("open", e.Name, atoll.ErrUnavailable, "%s: %s", p.Reason, p.Fix)
	}
	return e.open(cfg, opts)
}

// Providers lists those there are, the preferred one first. What another operating
// system is needed for is among them, see Entry.On.
func Providers() []Entry {
	return []Entry{
		{Name: "gvisor", open: openGVisor, Systems: []string{"linux"}, Why: "gVisor is a kernel for programs of Linux, and runs on Linux"},
		{Name: "docker", open: openDocker},
		{Name: "microvm", open: openMicroVM, Systems: []string{"linux", "darwin"}, Why: "machines of WSL have neither disks nor a size of their own: with vmdocker a project has one"},
		{Name: "vmdocker", open: openVMDocker, Systems: []string{"linux", "darwin", "windows"}, Why: "its machines are those of QEMU, vfkit or WSL"},
		ownPlugin("kubernetes", func(c *Config) any { return c.Kubernetes }),
		ownPlugin("modal", func(c *Config) any { return c.Modal }),
		{Name: "local", open: openLocal, Named: true},
		{Name: "mock", open: openMock, Named: true},
	}
}

// OtherProviders lists the providers that c names and that are not Atoll's own.
func (c *Config) OtherProviders() (all []Entry) {
	for _, name := range c.ProviderNames() {
		if _, own := builtIn(name); own {
			continue
		}
		if e, ok := c.pluginEntry(name); ok {
			all = append(all, e)
		}
	}
	return all
}

// On says whether there is such a provider on the operating system goos, and if not what
// to do there. Whether it works is for the provider's own Probe.
func (e Entry) On(goos string) atoll.Probe {
	if len(e.Systems) == 0 || slices.Contains(e.Systems, goos) {
		return atoll.Probe{OK: true}
	}
	var names []string
	for _, s := range e.Systems {
		names = append(names, cmp.Or(systemNames[s], s))
	}
	return atoll.Probe{
		Reason: e.Name + " is only available on " + strings.Join(names, " and ") + ", current platform: " + goos + ": " + e.Why,
		Fix:    "run atoll serve on a Linux machine and set url to it, or use docker here (--provider docker)",
	}
}

// systemNames are what operating systems are called, by GOOS.
var systemNames = map[string]string{"linux": "Linux", "darwin": "macOS", "windows": "Windows"}

// DefaultProvider is the provider of those who name none on a machine with the
// operating system goos, if it works there: see Config.Choose.
func DefaultProvider(goos string) string { return DefaultProviders(goos)[0] }

// DefaultProviders are those that can be named on a machine with the operating
// system goos where nobody says which, in the order in which Config.Choose prefers them,
// and then the others.
func DefaultProviders(goos string) []string {
	names := candidates(goos)
	for _, e := range Providers() {
		if !e.Named && e.On(goos).OK && !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	return names
}
