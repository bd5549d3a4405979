package stack

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
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Choice is the default provider, for sandboxes that name none.
type Choice struct {
	Provider string
	// Reason says why the preferred provider of this system is not the default; "" if it is.
	Reason string
	// Err says why there is no default provider, and what to do: neither the preferred provider, which is in
	// Provider, nor its substitutes work here. Kind: ErrUnavailable.
	Err error
}

// Choose returns the default provider: the configured one, otherwise the preferred one of this system if it works,
// otherwise docker if it works and is in b.Providers. Choose starts nothing. It only stores that the preferred
// provider works, until the machine reboots. It waits at most ten seconds for each provider. A preferred provider
// that does not answer in time is chosen.
func (b *Builder) Choose(ctx context.Context) Choice {
	return b.chooseAmong(config.CandidateProviders(runtime.GOOS), func(name string) (atoll.Probe, bool) { return b.tryProvider(ctx, name) })
}

// chooseAmong is Choose among names. try reports whether a provider works, and whether the answer is certain.
func (b *Builder) chooseAmong(names []string, try func(name string) (p atoll.Probe, sure bool)) Choice {
	if b.Origin("provider") != "default" {
		return Choice{Provider: b.Provider}
	}
	first := names[0]
	others := slices.DeleteFunc(slices.Clone(names[1:]), func(name string) bool { return !slices.Contains(b.Providers, name) })
	if len(others) == 0 {
		return Choice{Provider: first} // its own errors are the most precise
	}
	p, sure := try(first)
	if p.OK || !sure {
		return Choice{Provider: first}
	}
	reason := first + " does not work here: " + p.Reason
	why := []string{first + ": " + describeProbe(p)}
	for _, name := range others {
		p, _ := try(name)
		if p.OK {
			return Choice{Provider: name, Reason: reason}
		}
		why = append(why, name+": "+describeProbe(p))
	}
	return Choice{Provider: first, Err: atoll.Errorf("create", "", atoll.ErrUnavailable,
		"no default provider works here: %s; or name another provider (--provider, see atoll doctor)", strings.Join(why, "; "))}
}

// describeProbe returns why a provider does not work, and what to do.
func describeProbe(p atoll.Probe) string {
	if p.Fix == "" {
		return p.Reason
	}
	return p.Reason + "; " + p.Fix
}

// tryTimeout is the time that a provider may take to report whether it works.
const tryTimeout = 10 * time.Second

// tryProvider reports whether a provider works. If possible, it stores a positive result until the machine reboots.
// The result is not certain if the provider does not answer or cannot be opened; the stack then reports its error.
func (b *Builder) tryProvider(ctx context.Context, name string) (p atoll.Probe, sure bool) {
	note, text := b.proofFile(name)
	if found, err := os.ReadFile(note); err == nil && text != "" && string(found) == text {
		return atoll.Probe{OK: true}, true
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	e, err := b.FindProvider(name)
	if err != nil {
		return atoll.Probe{Reason: err.Error()}, false
	}
	leaf, err := b.OpenProvider(e, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return atoll.Probe{Reason: err.Error()}, false
	}
	p = atoll.ProbeProvider(ctx, leaf)
	if err := leaf.Close(); err != nil && p.OK {
		return atoll.Probe{Reason: err.Error()}, false
	}
	if p.OK && text != "" {
		_ = fsutil.WriteFile(note, []byte(text)) // if this fails, the next program tries again
	}
	return p, ctx.Err() == nil
}

// proofFile returns the path of the file that records that a provider works, and its content for this user and boot:
// a probe takes longer than most commands. The content is "" for providers that also depend on other things.
func (b *Builder) proofFile(name string) (path, text string) {
	path = filepath.Join(b.StateDir, name, "works")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if e, _ := config.BuiltIn(name); err != nil || !e.Steady {
		return path, ""
	}
	return path, fmt.Sprintf("%s %d\n", strings.TrimSpace(string(boot)), os.Geteuid())
}

// withChoice returns a copy of b with the chosen provider. Its other providers remain, since the preferred one may
// have created sandboxes before.
func (b *Builder) withChoice(choice Choice) *Builder {
	cfg := *b.Config
	cfg.Provider, cfg.Providers = choice.Provider, b.ProviderNames()
	return &Builder{Config: &cfg, server: b.server}
}

// reportChoice returns the router's Default, which reports to log that another provider replaces the preferred one. A
// server reports it at once, other programs with the first sandbox that they create without a provider.
func (c Choice) reportChoice(log *slog.Logger, server bool) func() error {
	say := sync.OnceFunc(func() {
		switch {
		case c.Err != nil && server: // otherwise the caller gets the error
			log.Warn("cannot create sandboxes without a provider name", "err", c.Err)
		case c.Reason != "":
			log.Warn("sandboxes without a provider name are created by "+c.Provider, "reason", c.Reason)
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
