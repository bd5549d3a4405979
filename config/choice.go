package config

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Choice is the provider of the sandboxes that name none.
type Choice struct {
	Provider string
	// Reason says why it is another than the one that is preferred on this system.
	Reason string
	// Err says why there is none, and what to do: neither the preferred one, which
	// Provider is then, nor what stands in for it works here. Kind: ErrUnavailable.
	Err error
}

// candidates are the providers of those who name none on the operating system goos, the
// preferred one first; the others stand in for it.
func candidates(goos string) (names []string) {
	preferred := "vmdocker"
	if goos == "linux" {
		preferred = "gvisor"
	}
	for _, name := range []string{preferred, "docker"} {
		if e, ok := builtIn(name); ok && e.On(goos).OK {
			names = append(names, name)
		}
	}
	return names
}

// Choose returns the provider that c names, else the one that is preferred here if it
// works, else docker, if that is one of c's providers and works. Nothing is started for
// it, nor kept but the note that the preferred one has worked since this machine was
// booted. It waits ten seconds at most for what one of them has to say; where the preferred
// one has not said that it does not work, it is the choice.
func (c *Config) Choose(ctx context.Context) Choice {
	return c.choose(candidates(runtime.GOOS), func(name string) (atoll.Probe, bool) { return c.try(ctx, name) })
}

// choose is Choose among names. try says whether one works, and whether that is sure.
func (c *Config) choose(names []string, try func(name string) (p atoll.Probe, sure bool)) Choice {
	if c.Origin("provider") != "default" {
		return Choice{Provider: c.Provider}
	}
	first := names[0]
	others := slices.DeleteFunc(slices.Clone(names[1:]), func(name string) bool { return !slices.Contains(c.Providers, name) })
	if len(others) == 0 {
		return Choice{Provider: first} // its own errors say best what is wrong
	}
	p, sure := try(first)
	if p.OK || !sure {
		return Choice{Provider: first}
	}
	reason := first + " does not work here: " + p.Reason
	why := []string{first + ": " + remedy(p)}
	for _, name := range others {
		p, _ := try(name)
		if p.OK {
			return Choice{Provider: name, Reason: reason}
		}
		why = append(why, name+": "+remedy(p))
	}
	return Choice{Provider: first, Err: atoll.Errorf("create", "", atoll.ErrUnavailable,
		"no provider is named, and those that are used then do not work here: %s; or name another (--provider, see atoll doctor)", strings.Join(why, "; "))}
}

// remedy is why something does not work, with what to do.
func remedy(p atoll.Probe) string {
	if p.Fix == "" {
		return p.Reason
	}
	return p.Reason + "; " + p.Fix
}

// tryTime is how long a provider may take to say whether it works.
const tryTime = 10 * time.Second

// try asks a provider whether it works, once since the machine was booted where that can
// be told. It is not sure of one that does not answer, or cannot be opened, which the
// stack will say, too.
func (c *Config) try(ctx context.Context, name string) (p atoll.Probe, sure bool) {
	note, text := c.proof(name)
	if found, err := os.ReadFile(note); err == nil && text != "" && string(found) == text {
		return atoll.Probe{OK: true}, true
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	e, err := c.find(name)
	if err != nil {
		return atoll.Probe{Reason: err.Error()}, false
	}
	leaf, err := e.Open(c, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return atoll.Probe{Reason: err.Error()}, false
	}
	p = atoll.ProbeProvider(ctx, leaf)
	if err := leaf.Close(); err != nil && p.OK {
		return atoll.Probe{Reason: err.Error()}, false
	}
	if p.OK && text != "" {
		_ = fsutil.WriteFile(note, []byte(text)) // else it is tried again
	}
	return p, ctx.Err() == nil
}

// proof is the file that says that a provider works, and what is in it, for this user
// and this boot of the machine: to try takes longer than most commands. There is no text
// for those which depend on more than that.
func (c *Config) proof(name string) (path, text string) {
	path = filepath.Join(c.StateDir, name, "works")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || name != "gvisor" {
		return path, ""
	}
	return path, fmt.Sprintf("%s %d\n", strings.TrimSpace(string(boot)), os.Geteuid())
}

// chosen is c with what was chosen as its provider. The others stay those that it has:
// the preferred one may have made sandboxes before.
func (c *Config) chosen(choice Choice) *Config {
	changed := *c
	changed.Provider, changed.Providers = choice.Provider, c.ProviderNames()
	return &changed
}

// tell says on log that another provider stands in for the preferred one: a server when it
// is opened, another program with the first sandbox that is made so, and no command that
// makes none. What it returns is the router's Default.
func (c Choice) tell(log *slog.Logger, server bool) func() error {
	say := sync.OnceFunc(func() {
		switch {
		case c.Err != nil && server: // else it is the error of who wanted one
			log.Warn("sandboxes that name no provider cannot be made", "err", c.Err)
		case c.Reason != "":
			log.Warn("sandboxes that name no provider are made by "+c.Provider, "reason", c.Reason)
		}
	})
	if server {
		say()
	}
	return func() error {
		say()
		return c.Err
	}
}
