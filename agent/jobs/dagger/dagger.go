// Package dagger runs the programs of agents in compute mode in containers of a Dagger
// engine.
//
// Each job has a session of its own with one container of the job's image. Its only
// command is Atoll's guest: that reads the job, does the same work as in every other
// backend, and writes the outcome to a file, which the backend reads from the
// container. So the image needs no shell, output may be binary, and the guest supplies
// features that Dagger's API lacks, such as a time limit. Dagger caches the results of
// commands and doesn't execute equal ones twice: so every job file is unique.
//
// If this program was itself started in a session by dagger run, its jobs use that
// session by default. The engine then frees their resources only with that session, and
// doesn't wait for cancelled jobs.
//
// Run refuses specs that the API cannot fulfil, see New.
package dagger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"dagger.io/dagger"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger/settings"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// Options select the engine, and set its limits.
type Options struct {
	// CLI is the path of Dagger's CLI, or its name in PATH. Without it and Engine, the
	// backend uses the session in which this program was started (DAGGER_SESSION_PORT),
	// else the CLI that _EXPERIMENTAL_DAGGER_CLI_BIN names, else dagger in PATH. It
	// never downloads one.
	CLI string
	// Engine is the address of the engine for the CLI: unix:///path, tcp://host:port or
	// docker-container://name. "" leaves it to the CLI, which without
	// _EXPERIMENTAL_DAGGER_RUNNER_HOST starts one with docker, from an image that it
	// pulls.
	Engine string
	// OpenNetwork allows jobs with a network. They reach everything that the engine's
	// containers reach, possibly its host and the networks around it.
	OpenNetwork bool
	// Guest returns the guest's program for this machine's architecture, which must
	// also be the engine's. The backend calls it before the first job and writes the
	// result to a file in Dir, which it creates. Running jobs have files there, too.
	Guest func() ([]byte, error)
	Dir   string
	// Patience bounds the time to connect; 0 means DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is the default time until an engine has to answer: the CLI may have
// to pull it.
const DefaultPatience = settings.DefaultPatience

// A Backend is a jobs.Backend.
type Backend struct {
	opts Options

	mu    sync.Mutex
	guest string // path of the program; "" before it is needed
}

// New returns a Backend, and starts nothing. It removes leftovers of killed programs
// from Dir. Run returns ErrUnsupported for specs beyond Dagger's abilities: limits of
// memory, CPUs, processes and disk; networks other than none and, with OpenNetwork, on;
// and everything that only makes sense for lasting sandboxes. A program without a
// network has no loopback either: Dagger gives every container a network, and the guest
// isolates the program by allowing it only Unix sockets.
func New(opts Options) *Backend {
	if opts.Patience == 0 {
		opts.Patience = DefaultPatience
	}
	if opts.Dir != "" {
		removeLeftovers(opts.Dir)
	}
	return &Backend{opts: opts}
}

// Paths in a container that the backend uses.
const (
	guestPath = "/.atoll/guest"
	jobPath   = "/.atoll/job"
)

// jobSlack is the time that a job may take beyond the limits of its program and
// installation, for example to pull an image.
const jobSlack = 10 * time.Minute

// Run implements jobs.Backend.
func (b *Backend) Run(ctx context.Context, job *jobs.Job) (*jobs.Result, error) {
	if err := job.Spec.Validate(); err != nil {
		return nil, err
	}
	if err := b.checkSpec(&job.Spec); err != nil {
		return nil, err
	}
	program, err := b.guestProgram()
	if err != nil {
		return nil, err
	}
	limit := 2*time.Duration(job.Timeout) + jobSlack
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	outcome, err := b.runJob(within, program, job)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && within.Err() != nil: // our limit, not the caller's
		return nil, atoll.Errorf("run", "", atoll.ErrTimeout, "dagger: killed the job after %s: neither it nor its preparation has ended", limit)
	case err != nil:
		return nil, err
	}
	if outcome.Kind != "" {
		return nil, atoll.Errorf("", "", outcome.Kind, "%s", outcome.Message)
	}
	return outcome.Result, nil
}

// runJob runs a job in a session of its own.
func (b *Backend) runJob(ctx context.Context, program string, job *jobs.Job) (*guest.Outcome, error) {
	s, err := b.connectEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer s.closeClient()
	return s.runJob(ctx, program, filepath.Join(b.opts.Dir, jobsDir), job)
}

// runJob runs a job in a container of the session.
func (s *session) runJob(ctx context.Context, program, jobs string, job *jobs.Job) (*guest.Outcome, error) {
	image, err := s.inspectImage(ctx, job.Spec.Image)
	if err != nil {
		return nil, err
	}
	dir, unpack, err := packJob(jobs, job, image)
	if err != nil {
		return nil, atoll.E("run", "", atoll.ErrUnavailable, err)
	}
	defer unpack()
	host := s.client.Host()
	file := s.client.Container(dagger.ContainerOpts{Platform: platform}).From(job.Spec.Image).
		WithUser("0"). // the guest runs as root, the program as the other user without privileges
		WithMountedFile(guestPath, host.File(program)).
		WithMountedDirectory(jobPath, host.Directory(dir)).
		WithExec([]string{guestPath, "job", jobPath}, dagger.ContainerWithExecOpts{NoInit: true}).
		File(jobPath + "/" + guest.OutcomeFile)
	size, err := file.Size(ctx) // executes the guest
	if err != nil {
		return nil, s.guestError(err)
	}
	if most := outcomeSize(job); int64(size) > most {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "outcome of the program has %d bytes, more than the possible %d", size, most)
	}
	text, err := file.Contents(ctx)
	if err != nil {
		return nil, s.guestError(err)
	}
	var outcome guest.Outcome
	if err := json.Unmarshal([]byte(text), &outcome); err != nil {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "cannot decode the outcome of the program: %w", err)
	}
	if outcome.Result == nil && outcome.Kind == "" {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "outcome of the program is empty")
	}
	return &outcome, nil
}

// outcomeSize returns the most bytes of an Outcome: content is in base64, and names
// have their maximum length.
func outcomeSize(job *jobs.Job) int64 {
	return 2*(2*job.MaxOutput+job.MaxContent) + int64(job.MaxFiles+1)*64<<10 + 1<<20
}

// platform is the platform of containers, and of the guest's program.
const platform = dagger.Platform("linux/" + runtime.GOARCH)

// An imageConfig is the part of an image's configuration that programs use.
type imageConfig struct {
	User string
	Env  []struct{ Name, Value string } `json:"envVariables"`
}

// inspectImage pulls an image, and returns its configuration. The SDK would make a
// request for each variable.
func (s *session) inspectImage(ctx context.Context, ref string) (*imageConfig, error) {
	const query = `query ($platform: Platform, $ref: String!) { container(platform: $platform) { from(address: $ref) { user envVariables { name value } } } }`
	var found struct{ Container struct{ From imageConfig } }
	err := s.client.Do(ctx, &dagger.Request{Query: query, Variables: map[string]any{"platform": platform, "ref": ref}}, &dagger.Response{Data: &found})
	if err != nil {
		return nil, pullError(ref, err)
	}
	return &found.Container.From, nil
}

// pullError returns the error of an image that cannot be pulled.
func pullError(ref string, err error) error {
	kind, text := atoll.ErrUnavailable, strings.ToLower(err.Error())
	says := func(what string) bool { return strings.Contains(text, what) }
	switch {
	case says("access denied"), says("unauthorized"), says("authorization failed"), says("401 "), says("403 "): // registries also answer this for missing images
		kind = atoll.ErrDenied
	case says(": not found"), says("manifest unknown"), says("name unknown"):
		kind = atoll.ErrNotExist
	case says("invalid reference format"):
		kind = atoll.ErrInvalid
	}
	return atoll.Errorf("run", "", kind, "dagger: image %s: %w", ref, err)
}

// guestError returns the error of an engine that was asked to run the guest, and so may
// have run the program.
func (s *session) guestError(err error) error {
	if e, ok := errors.AsType[*dagger.ExecError](err); ok {
		said := strings.TrimSpace(e.Stderr) // the guest's own output: the program's is in the outcome
		if e.ExitCode == 1 && said != "" {
			return atoll.Errorf("run", "", atoll.ErrInternal, "dagger: %s", said)
		}
		err = errors.New(strings.TrimSuffix(fmt.Sprintf("the guest ended with code %d: %s", e.ExitCode, said), ": "))
	}
	return jobs.Interrupted(fmt.Errorf("dagger: %w", withOutput(err, s.cliError())))
}

// checkSpec returns ErrUnsupported for a spec beyond the backend's abilities.
func (b *Backend) checkSpec(s *atoll.Spec) error {
	switch mode := s.Network.Mode; {
	case mode == "" || mode == atoll.NetworkNone:
	case mode != atoll.NetworkOn || len(s.Network.Allow) > 0:
		return unsupportedErrorf("network %s not supported: Dagger's containers have network none or on", mode)
	case !b.opts.OpenNetwork:
		return unsupportedErrorf("a program with a network reaches everything that the engine's containers reach, possibly its host: set dagger.open_network to allow that")
	}
	if s.Image == "" {
		return unsupportedErrorf("Dagger has no default image: set one")
	}
	if frontmatter.OfMachine(s.Image) {
		return unsupportedErrorf("image %s only exists on this machine, and the engine pulls from registries: use an image of a registry, for example with tools.images", s.Image)
	}
	rest := *s
	rest.Name, rest.Project, rest.Provider, rest.Labels, rest.TTL = "", "", "", nil, 0
	rest.Image, rest.Env, rest.Workdir, rest.User, rest.Network = "", nil, "", "", atoll.Network{}
	text, err := json.Marshal(rest)
	if err != nil {
		return err
	}
	var left map[string]any
	if err := json.Unmarshal(text, &left); err != nil {
		return err
	}
	if len(left) > 0 {
		return unsupportedErrorf("%s: not supported by Dagger's containers", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	return nil
}

func unsupportedErrorf(format string, args ...any) error {
	return atoll.Errorf("run", "", atoll.ErrUnsupported, "dagger: "+format, args...)
}

// Close implements jobs.Backend: sessions end with their jobs.
func (b *Backend) Close() error { return nil }

// Probe reports whether the engine answers, without running a program. It doesn't start
// an engine, since the CLI would pull an image and run it with all privileges. In that
// case the Probe is OK unless no engine can be started, and has a Reason nevertheless.
func (b *Backend) Probe(ctx context.Context) atoll.Probe {
	p := atoll.Probe{OK: true}
	if b.startsEngine() {
		cli, err := b.findCLI()
		if err == nil {
			err = b.canStart()
		}
		if err != nil {
			return b.failedProbe(err)
		}
		p.Reason = fmt.Sprintf("not checked, since dagger.engine names no running engine: for the first program %s starts a privileged one with docker or similar, from an image that it pulls, which takes minutes", cli)
		p.Fix = "set dagger.engine to the address of a running engine, or run a program"
	} else {
		s, err := b.connectEngine(ctx)
		if err != nil {
			return b.failedProbe(err)
		}
		defer s.closeClient()
		ctx, cancel := context.WithTimeout(ctx, b.opts.Patience)
		defer cancel()
		version, err := s.client.Version(ctx)
		if err != nil {
			return b.failedProbe(unavailableErrorf("the engine does not answer: %v", err))
		}
		p.Notes = append(p.Notes, fmt.Sprintf("engine %s, by %s", version, s.connName))
	}
	p.Notes = append(p.Notes,
		"a program only costs the engine's CPU time and disk, which are yours",
		"programs have no limits of memory, CPUs and processes, since Dagger has none",
		"files of programs stay in the engine's cache until that removes them; no other program sees them")
	if b.opts.OpenNetwork {
		p.Notes = append(p.Notes, "programs with a network reach everything that the engine's containers reach (dagger.open_network)")
	}
	return p
}

// failedProbe returns the Probe for err, with advice.
func (b *Backend) failedProbe(err error) atoll.Probe {
	p := atoll.Probe{Reason: err.Error(), Fix: "make sure that the engine runs at dagger.engine, and that this user may use it"}
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
		p.Reason = strings.TrimPrefix(e.Err.Error(), "dagger: ") // the probe's own name precedes it already
	}
	switch _, missing := b.findCLI(); {
	case b.inSession():
		p.Fix = "start this program in a session that has not ended (dagger run), or set dagger.engine"
	case missing != nil:
		p.Fix = "install Dagger's CLI, or set dagger.cli to its path"
	case b.startsEngine():
		p.Fix = "set dagger.engine to the address of a running engine, or install docker"
	}
	return p
}

var (
	_ jobs.Backend = (*Backend)(nil)
	_ atoll.Prober = (*Backend)(nil)
)
