//go:build !client

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/internal/program"
)

// A diagnosis has the findings of doctor.
type diagnosis struct {
	System    string      `json:"system"` // operating system and architecture
	Config    string      `json:"config"` // path of the file
	StateDir  string      `json:"state_dir"`
	State     atoll.Probe `json:"state"`            // whether the state directory is usable
	Store     atoll.Probe `json:"store"`            // whether the records of sandboxes are readable
	Server    string      `json:"server,omitempty"` // the providers of the server, or why none answers
	URL       string      `json:"url,omitempty"`    // URL of the configured server
	urlOK     bool
	Provider  string              `json:"provider,omitempty"` // default provider
	Why       string              `json:"why,omitempty"`      // reason for the default provider
	Providers []providerDiagnosis `json:"providers"`
	Drivers   []driverDiagnosis   `json:"drivers"`
	Compute   computeDiagnosis    `json:"compute"` // compute backend; sandboxes run the programs of sandbox_run if it is not used
}

type computeDiagnosis struct {
	Backend string `json:"backend"`
	Used    bool   `json:"used"`
	atoll.Probe
}

type providerDiagnosis struct {
	Name      string          `json:"name"`
	Isolation atoll.Isolation `json:"isolation,omitempty"`
	Default   bool            `json:"default"` // the default provider on this machine
	Listed    bool            `json:"listed"`  // in providers
	atoll.Probe
	Caps *atoll.Caps `json:"caps,omitempty"`
}

type driverDiagnosis struct {
	Name  string   `json:"name"`
	Users []string `json:"users"` // the providers that can use it
	// Setting is the setting that selects the driver; "" if it is the default.
	Setting string `json:"setting,omitempty"`
	atoll.Probe
}

func newDoctor(a *app) *cobra.Command {
	var asJSON, fix bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check which providers work on this machine, and how to fix the others",
		Long: `Doctor tests every provider, and every driver of virtual machines, and prints the
default provider and the reason for it. The exit code is 0 if the default provider
works here, and the compute backend (compute.backend) works or was not tested, as a
test would have to start Dagger; otherwise it is 1. If url names a server, only
that server counts. Providers that are not in providers are only used if --provider
names them, and only by this program.

With --fix, doctor installs the packages that the default provider, or that of
--provider, lacks, with apt-get as root. It changes nothing else: other advice is for
you to follow.`,
		Example: `  atoll doctor
  sudo atoll doctor --fix --provider microvm`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptContext(cmd.Context())
			defer stop()
			d, err := a.runDiagnosis(ctx)
			if err == nil && fix {
				d, err = a.fixProvider(ctx, d)
			}
			if err != nil {
				return preferSignal(ctx, err)
			}
			if asJSON {
				err = a.printJSON(d)
			} else {
				err = a.printDiagnosis(d)
			}
			if err == nil && !d.isHealthy() {
				err = exitError(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().BoolVar(&fix, "fix", false, "install the missing packages of the default provider")
	return cmd
}

// fixProvider installs the packages that the default provider lacks, and returns the findings afterwards.
func (a *app) fixProvider(ctx context.Context, d *diagnosis) (*diagnosis, error) {
	if d.URL != "" {
		return nil, usageErrorf("--fix installs packages on this machine, but commands use %s: add --context default, or run it there", d.URL)
	}
	i := slices.IndexFunc(d.Providers, func(p providerDiagnosis) bool { return p.Default })
	if i < 0 || len(d.Providers[i].Packages) == 0 {
		a.printMessage("no package is missing for %s", d.Provider)
		return d, nil
	}
	packages := d.Providers[i].Packages
	install := "apt-get install " + strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, usageErrorf("--fix needs apt-get, which this machine lacks: install what %s provides with your package manager", install)
	}
	if os.Geteuid() != 0 {
		return nil, usageErrorf("--fix needs root: run sudo %s", install)
	}
	a.printMessage("running %s", install)
	if err := a.installPackages(ctx, packages); err != nil {
		a.printMessage("it failed; trying again after apt-get update")
		if err := a.runApt(ctx, "update"); err != nil {
			return nil, err
		}
		if err := a.installPackages(ctx, packages); err != nil {
			return nil, err
		}
	}
	return a.runDiagnosis(ctx)
}

func (a *app) installPackages(ctx context.Context, packages []string) error {
	return a.runApt(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
}

// runApt runs apt-get without questions. Its output goes to stderr.
func (a *app) runApt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = a.stderr, a.stderr
	if err := cmd.Run(); err != nil {
		return atoll.Errorf("doctor", "", atoll.ErrUnavailable, "apt-get %s: %w", args[0], err)
	}
	return nil
}

// runDiagnosis tests everything.
func (a *app) runDiagnosis(ctx context.Context) (*diagnosis, error) {
	b, err := a.loadBuilder()
	if err != nil {
		return nil, err
	}
	cfg := b.Config
	d := &diagnosis{System: runtime.GOOS + "/" + runtime.GOARCH, Config: cfg.File(), StateDir: cfg.StateDir, State: probeDir(cfg.StateDir), URL: cfg.URL}
	d.Store = stack.ProbeStore(ctx, b)
	if d.Server, err = a.describeServer(ctx, cfg); err != nil {
		d.Server = causeOf(err).Error()
	}
	d.urlOK = err == nil
	if cfg.URL == "" {
		choice := b.Choose(ctx)
		d.Provider, d.Why = choice.Provider, whyThat(choice, cfg.Origin("provider"))
	}
	for _, e := range append(config.Providers(), cfg.OtherProviders()...) {
		d.Providers = append(d.Providers, diagnoseProvider(ctx, b, e, d.Provider))
	}
	for _, e := range stack.Drivers() {
		d.Drivers = append(d.Drivers, driverDiagnosis{e.Name, append([]string{}, e.Users...), e.Setting, e.Probe(ctx, b)})
	}
	c := &d.Compute
	c.Backend, c.Used, c.Probe = b.ProbeCompute(ctx)
	return d, nil
}

// describeServer describes the server that commands would use; "" means none.
func (a *app) describeServer(ctx context.Context, cfg *config.Config) (string, error) {
	if cfg.URL != "" {
		c, err := a.dialServer(ctx, cfg, cfg.URL)
		if err != nil {
			return "", err
		}
		names, err := providerNames(ctx, c)
		return names + " at " + cfg.URL, errors.Join(err, c.Close())
	}
	client, err := runningServer(ctx, cfg)
	if err != nil || client == nil {
		return "", err
	}
	names, err := providerNames(ctx, client)
	return names + " on " + cfg.Socket(), errors.Join(err, client.Close())
}

// providerNames lists the providers of a server, the default one first.
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

// whyThat returns the reason for the default provider. from is the source of the setting.
func whyThat(choice stack.Choice, from string) string {
	switch {
	case choice.Err != nil:
		return "nothing can replace it"
	case choice.Reason != "":
		return choice.Reason
	case from == "default":
		return "preferred on " + runtime.GOOS
	}
	return "set by " + from
}

// diagnoseProvider tests a provider. used is the name of the default one.
func diagnoseProvider(ctx context.Context, b *stack.Builder, e config.Entry, used string) providerDiagnosis {
	d := providerDiagnosis{Name: e.Name, Default: e.Name == used, Listed: slices.Contains(b.ProviderNames(), e.Name)}
	if d.Probe = e.On(runtime.GOOS); !d.OK {
		return d
	}
	p, err := b.OpenProvider(e, stack.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		d.Probe = atoll.Probe{Reason: causeOf(err).Error(), Fix: "correct the setting: atoll config shows all settings and their sources"}
		if missing, ok := errors.AsType[program.MissingError](err); ok {
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

// probeDir tests whether the directory is writable.
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

// isHealthy reports whether commands can work.
func (d *diagnosis) isHealthy() bool {
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
		fmt.Fprintf(&b, "\n%s  %s%s\n", p.Name, describeProbe(p.Probe), uses)
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
		fmt.Fprintf(&b, "\n%s  %s, %s\n", d.Name, describeProbe(d.Probe), uses)
		printProbe(&b, "", d.Probe)
	}
	uses := "not used: sandboxes run the programs of sandbox_run"
	if d.Compute.Used {
		uses = describeProbe(d.Compute.Probe) + ", runs the programs of sandbox_run"
	}
	fmt.Fprintf(&b, "\n%s  %s (compute.backend)\n", d.Compute.Backend, uses)
	printProbe(&b, "", d.Compute.Probe)
	_, err := a.stdout.WriteString(b.String())
	return err
}

// describeProbe describes the result of a probe.
func describeProbe(p atoll.Probe) string {
	switch {
	case !p.OK:
		return "does not work here"
	case p.Reason != "": // not known whether it works
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

// orNone returns s, or a text for no server.
func orNone(s string) string {
	if s == "" {
		return "none runs"
	}
	return s
}
