package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// A diagnosis is what doctor finds.
type diagnosis struct {
	System    string      `json:"system"` // operating system and architecture
	Config    string      `json:"config"` // path of the file
	StateDir  string      `json:"state_dir"`
	State     atoll.Probe `json:"state"`            // whether the state directory can be used
	Store     atoll.Probe `json:"store"`            // and what is written down of sandboxes in it
	Server    string      `json:"server,omitempty"` // what answers, or why nothing does
	URL       string      `json:"url,omitempty"`    // of the server that is to be used
	urlOK     bool
	Provider  string              `json:"provider,omitempty"` // what makes sandboxes that name none here
	Why       string              `json:"why,omitempty"`      // it is that one
	Providers []providerDiagnosis `json:"providers"`
	Drivers   []driverDiagnosis   `json:"drivers"`
	Compute   computeDiagnosis    `json:"compute"` // what runs programs of sandbox_run, if it is used: else sandboxes do
}

type computeDiagnosis struct {
	Backend string `json:"backend"`
	Used    bool   `json:"used"`
	atoll.Probe
}

type providerDiagnosis struct {
	Name      string          `json:"name"`
	Isolation atoll.Isolation `json:"isolation,omitempty"`
	Default   bool            `json:"default"` // the one in use here, where none is named
	Listed    bool            `json:"listed"`  // one of those that can be named
	atoll.Probe
	Caps *atoll.Caps `json:"caps,omitempty"`
}

type driverDiagnosis struct {
	Name  string   `json:"name"`
	Users []string `json:"users"` // the providers whose machines it makes
	// Setting is with which they do, "" by default.
	Setting string `json:"setting,omitempty"`
	atoll.Probe
}

func newDoctor(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say which providers work on this machine, and what to do about those that do not",
		Long: `Doctor tries every provider, and every driver of virtual machines, and says which
provider makes the sandboxes that name none, and why that one. Its exit code is
0 when the provider in use works here, and what runs programs of sandbox_run
(compute.backend) does or was not tried, as Dagger's CLI would have to start it,
else 1; where url names a server, what counts is whether that can be used. Those
that providers does not list are used only when --provider names them, and then
by this program alone.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			d, err := a.diagnose(ctx)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				err = a.printJSON(d)
			} else {
				err = a.printDiagnosis(d)
			}
			if err == nil && !d.ok() {
				err = exitError(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func (a *app) diagnose(ctx context.Context) (*diagnosis, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	d := &diagnosis{System: runtime.GOOS + "/" + runtime.GOARCH, Config: cfg.File(), StateDir: cfg.StateDir, State: probeDir(cfg.StateDir), URL: cfg.URL}
	d.Store = config.ProbeStore(ctx, cfg)
	if d.Server, err = a.answers(ctx, cfg); err != nil {
		d.Server = causeOf(err).Error()
	}
	d.urlOK = err == nil
	if cfg.URL == "" {
		choice := cfg.Choose(ctx)
		d.Provider, d.Why = choice.Provider, whyThat(choice, cfg.Origin("provider"))
	}
	for _, e := range append(config.Providers(), cfg.OtherProviders()...) {
		d.Providers = append(d.Providers, a.examine(ctx, cfg, e, d.Provider))
	}
	for _, e := range config.Drivers() {
		d.Drivers = append(d.Drivers, driverDiagnosis{e.Name, append([]string{}, e.Users...), e.Setting, e.Probe(ctx, cfg)})
	}
	c := &d.Compute
	c.Backend, c.Used, c.Probe = cfg.ProbeCompute(ctx)
	return d, nil
}

// answers says which server commands would use, "" if none.
func (a *app) answers(ctx context.Context, cfg *config.Config) (string, error) {
	if cfg.URL != "" {
		c, err := a.dial(ctx, cfg, cfg.URL)
		if err != nil {
			return "", err
		}
		names, err := providerNames(ctx, c)
		return names + " at " + cfg.URL, errors.Join(err, c.Close())
	}
	client, err := running(ctx, cfg)
	if err != nil || client == nil {
		return "", err
	}
	names, err := providerNames(ctx, client)
	return names + " on " + cfg.Socket(), errors.Join(err, client.Close())
}

// providerNames are those of a server, the default one first.
func providerNames(ctx context.Context, p atoll.Provider) (string, error) {
	all, err := atoll.Members(ctx, p)
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	verb := " answer"
	if len(names) == 1 {
		verb = " answers"
	}
	return strings.Join(names, ", ") + verb, err
}

// whyThat says why the provider of who names none is that one. from is where the setting
// comes from.
func whyThat(choice config.Choice, from string) string {
	switch {
	case choice.Err != nil:
		return "nothing stands in for it"
	case choice.Reason != "":
		return choice.Reason
	case from == "default":
		return "preferred on " + runtime.GOOS
	}
	return "set by " + from
}

func (a *app) examine(ctx context.Context, cfg *config.Config, e config.Entry, used string) providerDiagnosis {
	d := providerDiagnosis{Name: e.Name, Default: e.Name == used, Listed: slices.Contains(cfg.ProviderNames(), e.Name)}
	if d.Probe = e.On(runtime.GOOS); !d.OK {
		return d
	}
	p, err := e.Open(cfg, config.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		d.Probe = atoll.Probe{Reason: causeOf(err).Error(), Fix: "fix what it names: atoll config shows what is set, and where"}
		if missing, ok := errors.AsType[plugin.MissingError](err); ok {
			d.Probe = atoll.Probe{Reason: missing.Error(), Fix: missing.Fix()}
		}
		return d
	}
	info := p.Info()
	d.Isolation, d.Caps, d.Probe = info.Isolation, &info.Caps, atoll.ProbeProvider(ctx, p)
	if err := p.Close(); err != nil && d.OK {
		d.Probe = atoll.Probe{Reason: err.Error()}
	}
	return d
}

// probeDir tries to make a file in the directory.
func probeDir(dir string) atoll.Probe {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".doctor-*"); err == nil {
			f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		return atoll.Probe{Reason: err.Error(), Fix: "set state_dir to a directory that you can write to (--state-dir, ATOLL_STATE_DIR)"}
	}
	return atoll.Probe{OK: true}
}

func (d *diagnosis) ok() bool {
	if d.URL != "" {
		return d.urlOK
	}
	for _, p := range d.Providers {
		if p.Default {
			return p.OK && d.State.OK && d.Store.OK && (!d.Compute.Used || d.Compute.OK)
		}
	}
	return false
}

func (a *app) printDiagnosis(d *diagnosis) error {
	var b strings.Builder
	fmt.Fprintf(&b, "system     %s\nconfig     %s\nstate_dir  %s\nserver     %s\n", d.System, d.Config, d.StateDir, orNone(d.Server))
	if d.Provider != "" {
		fmt.Fprintf(&b, "provider   %s (%s)\n", d.Provider, d.Why)
	}
	printProbe(&b, "state_dir", d.State)
	printProbe(&b, "", d.Store)
	for _, p := range d.Providers {
		uses := ""
		if p.Default {
			uses = ", in use"
		} else if !p.Listed {
			uses = ", not in providers"
		}
		if p.Isolation == atoll.IsolationNone {
			uses += ", does not isolate: for development only"
		}
		fmt.Fprintf(&b, "\n%s  %s%s\n", p.Name, verdict(p.Probe), uses)
		printProbe(&b, "", p.Probe)
	}
	for _, d := range d.Drivers {
		uses := "for Go programs (package vm/" + d.Name + "): no provider uses it yet"
		if len(d.Users) > 0 {
			uses = "makes the machines of " + strings.Join(d.Users, ", ")
			if d.Setting != "" {
				uses += ", with " + d.Setting
			}
		}
		fmt.Fprintf(&b, "\n%s  %s, %s\n", d.Name, verdict(d.Probe), uses)
		printProbe(&b, "", d.Probe)
	}
	uses := "not used: sandboxes run the programs of sandbox_run"
	if d.Compute.Used {
		uses = verdict(d.Compute.Probe) + ", runs the programs of sandbox_run"
	}
	fmt.Fprintf(&b, "\n%s  %s (compute.backend)\n", d.Compute.Backend, uses)
	printProbe(&b, "", d.Compute.Probe)
	_, err := a.stdout.WriteString(b.String())
	return err
}

func verdict(p atoll.Probe) string {
	switch {
	case !p.OK:
		return "does not work here"
	case p.Reason != "": // why that is not known
		return "not tried"
	}
	return "works"
}

func printProbe(b *strings.Builder, what string, p atoll.Probe) {
	if p.Reason != "" {
		fmt.Fprintf(b, "  why   %s\n", strings.TrimSpace(what+" "+p.Reason))
	}
	if p.Fix != "" {
		fmt.Fprintf(b, "  do    %s\n", p.Fix)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(b, "  note  %s\n", n)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none runs"
	}
	return s
}
