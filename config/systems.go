package config

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Entry describes a provider that a Config can name.
type Entry struct {
	Name string
	// Systems are the operating systems that have the provider, by GOOS; empty means all. Why says why others do not.
	Systems []string
	Why     string
	// Named means that the provider is never a default, since it does not isolate, or does not run on this machine.
	Named bool
	// Table returns the settings of a plugin of Atoll's own; nil for other providers.
	Table func(cfg *Config) any

	Steady     bool // once it works, it works until the machine reboots
	Unisolated bool // its sandboxes are processes of this machine's user: only admins may create them
	HostKernel bool // it needs only this machine's kernel, which its sandboxes share: accounts of projects may create them if the configuration names it
	OneImage   bool // all its sandboxes have the same image
	Pulls      bool // its images come from registries
	Elsewhere  bool // its sandboxes are not on this machine
	Light      bool // an idle sandbox costs so little that a server has some ready

	preferredOn []string                 // the operating systems whose preferred default it is
	substitute  bool                     // it replaces a preferred default that does not work
	image       func(cfg *Config) string // its name for the image of sandboxes that name none; nil for none
	host        func(cfg *Config) string // the address of a backend on another machine; nil or "" for none
}

// HostImage is the name of the programs of this machine as an image.
const HostImage = "host"

// DefaultImage returns the provider's name for the image of sandboxes that name none; "" for none. The tools of agents
// use it in their requests, which should get sandboxes of the same pools as requests without an image.
func (e Entry) DefaultImage(cfg *Config) string {
	if e.image == nil {
		return ""
	}
	return e.image(cfg)
}

// Host returns the address of the provider's backend if that is on another machine; otherwise "".
func (e Entry) Host(cfg *Config) string {
	if e.host == nil {
		return ""
	}
	return e.host(cfg)
}

// Providers returns the built-in providers, preferred ones first, including those of other operating systems: see
// Entry.On.
func Providers() []Entry {
	return []Entry{
		{Name: "gvisor", Pulls: true, Systems: []string{"linux"}, Why: "gVisor is a kernel for programs of Linux, and runs on Linux",
			preferredOn: []string{"linux"}, Steady: true, Light: true, image: func(*Config) string { return HostImage }},
		{Name: "docker", Pulls: true,
			substitute: true, image: func(c *Config) string { return c.Docker.Image }, host: func(c *Config) string { return c.Docker.remoteHost() }},
		nativeEntry(runtime.GOOS),
		{Name: "microvm", Pulls: true, Systems: []string{"linux", "darwin"}, Why: "machines of WSL have neither disks nor a size of their own: use vmdocker, with one machine per project",
			image: func(c *Config) string { return c.MicroVM.Bundle }},
		{Name: "vmdocker", Pulls: true, Systems: []string{"linux", "darwin", "windows"}, Why: "it needs QEMU, vfkit or WSL",
			preferredOn: []string{"darwin", "windows"}, image: func(c *Config) string { return c.VMDocker.Image }},
		ownPlugin("kubernetes", func(c *Config) any { return c.Kubernetes }, func(c *Config) string { return c.Kubernetes.Image }),
		ownPlugin("modal", func(c *Config) any { return c.Modal }, func(c *Config) string { return c.Modal.Image }),
		{Name: "local", Named: true, Unisolated: true, OneImage: true, image: func(*Config) string { return HostImage }},
		{Name: "mock", Named: true, OneImage: true},
	}
}

// nativeEntry returns the entry of the provider native on the operating system goos. On macOS its sandboxes belong to one user, have
// no limits, and see the environment of that user's programs. So only admins may create them.
func nativeEntry(goos string) Entry {
	mac := goos == "darwin"
	return Entry{Name: "native", Systems: []string{"linux", "darwin"}, Why: "it needs namespaces of Linux or Seatbelt of macOS",
		Pulls: !mac, OneImage: mac, HostKernel: !mac, Unisolated: mac, Light: !mac, image: func(*Config) string { return HostImage }}
}

// OtherProviders returns the providers in c that are not Atoll's own.
func (c *Config) OtherProviders() (all []Entry) {
	for _, name := range c.ProviderNames() {
		if _, own := BuiltIn(name); own {
			continue
		}
		if e, ok := c.pluginEntry(name); ok {
			all = append(all, e)
		}
	}
	return all
}

// On reports whether the operating system goos has the provider, and if not what to do. Whether the provider works is
// up to its Probe.
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

// systemNames are the names of operating systems by GOOS.
var systemNames = map[string]string{"linux": "Linux", "darwin": "macOS", "windows": "Windows"}

// DefaultProvider returns the preferred default provider of the operating system goos: see Builder.Choose of package stack.
func DefaultProvider(goos string) string { return DefaultProviders(goos)[0] }

// DefaultProviders returns the default of Config.Providers on the operating system goos: the candidates of
// Builder.Choose in order of preference, and then the others.
func DefaultProviders(goos string) []string {
	names := CandidateProviders(goos)
	for _, e := range Providers() {
		if !e.Named && e.On(goos).OK && !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	return names
}
