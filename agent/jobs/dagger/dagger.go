// Package dagger runs the programs of agents in compute mode in containers of a Dagger
// engine.
//
// Each job has a session of its own, and in that one container of the job's image, whose
// one command is Atoll's guest: it reads the job, does with it what is done in every
// other backend, and writes what came of it into a file, which is read from the
// container. So the image needs no shell, output may be binary, and what Dagger's API
// does not have, such as a time limit, is the guest's. Dagger keeps what a command has
// made, and does not execute the same one twice: the file with the job is never the same.
//
// A program that was itself started in a session, by dagger run, has its jobs in that one
// unless told otherwise: what the engine holds for them goes with that session, and a job
// that is broken off is not waited for.
//
// What the API cannot have a container do, or not do, is refused, see New.
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

// Options say which engine runs programs, and what it may do.
type Options struct {
	// CLI is the path of Dagger's CLI, or its name in PATH. Without it and Engine, the
	// session is used that this program was started in (DAGGER_SESSION_PORT), else the CLI
	// that _EXPERIMENTAL_DAGGER_CLI_BIN names, else dagger in PATH. None is ever fetched.
	CLI string
	// Engine is where the CLI finds the engine: unix:///path, tcp://host:port or
	// docker-container://name. "" leaves it to the CLI, which without
	// _EXPERIMENTAL_DAGGER_RUNNER_HOST starts one with docker, from an image that it pulls.
	Engine string
	// OpenNetwork has the jobs run that are to have a network. They reach what the
	// engine's containers do, which may be its host and all around it.
	OpenNetwork bool
	// Guest returns the guest's program, for a machine like this one, as the engine's is to
	// be. It is called before the first job, and what it
	// returns is written to a file in Dir, which is made. Jobs are there, too, while they
	// run.
	Guest func() ([]byte, error)
	Dir   string
	// Patience is how long it may take to connect; 0 means DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is how long an engine may take to answer: it may have to be pulled.
const DefaultPatience = settings.DefaultPatience

// A Backend is a jobs.Backend.
type Backend struct {
	opts Options

	mu    sync.Mutex
	guest string // path of the program; "" until it is needed
}

// New returns a Backend, and starts nothing. It removes from Dir what others have left there
// who were killed. What it cannot do is ErrUnsupported to its
// Run: limits of memory, CPUs, processes and disk, which Dagger has none of; networks
// other than none and, with OpenNetwork, on; all that is for sandboxes that stay. A program
// without a network has no loopback either: Dagger gives every container a network, and
// what keeps a program from it is that it can make no sockets but Unix ones.
func New(opts Options) *Backend {
	if opts.Patience == 0 {
		opts.Patience = DefaultPatience
	}
	if opts.Dir != "" {
		tidy(opts.Dir)
	}
	return &Backend{opts: opts}
}

// The places in a container that are the backend's.
const (
	guestPath = "/.atoll/guest"
	jobPath   = "/.atoll/job"
)

// slack is how much longer than its program and what is installed a job may take: an
// image is pulled, perhaps.
const slack = 10 * time.Minute

// Run implements jobs.Backend.
func (b *Backend) Run(ctx context.Context, job *jobs.Job) (*jobs.Result, error) {
	if err := job.Spec.Validate(); err != nil {
		return nil, err
	}
	if err := b.check(&job.Spec); err != nil {
		return nil, err
	}
	program, err := b.program()
	if err != nil {
		return nil, err
	}
	limit := 2*time.Duration(job.Timeout) + slack
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	outcome, err := b.run(within, program, job)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && within.Err() != nil: // a limit of ours, and not the caller's
		return nil, atoll.Errorf("run", "", atoll.ErrTimeout, "dagger: the program, with all that goes before it, has not ended after %s, and is killed", limit)
	case err != nil:
		return nil, err
	}
	if outcome.Kind != "" {
		return nil, atoll.Errorf("", "", outcome.Kind, "%s", outcome.Message)
	}
	return outcome.Result, nil
}

// run runs a job in a session of its own.
func (b *Backend) run(ctx context.Context, program string, job *jobs.Job) (*guest.Outcome, error) {
	s, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.run(ctx, program, filepath.Join(b.opts.Dir, jobsDir), job)
}

// run runs a job in a container of the session.
func (s *session) run(ctx context.Context, program, jobs string, job *jobs.Job) (*guest.Outcome, error) {
	image, err := s.image(ctx, job.Spec.Image)
	if err != nil {
		return nil, err
	}
	dir, unpack, err := pack(jobs, job, image)
	if err != nil {
		return nil, atoll.E("run", "", atoll.ErrUnavailable, err)
	}
	defer unpack()
	host := s.client.Host()
	file := s.client.Container(dagger.ContainerOpts{Platform: platform}).From(job.Spec.Image).
		WithUser("0"). // the guest's: the program has the other one, and no privileges
		WithMountedFile(guestPath, host.File(program)).
		WithMountedDirectory(jobPath, host.Directory(dir)).
		WithExec([]string{guestPath, "job", jobPath}, dagger.ContainerWithExecOpts{NoInit: true}).
		File(jobPath + "/" + guest.OutcomeFile)
	size, err := file.Size(ctx) // this runs the guest
	if err != nil {
		return nil, s.failed(err)
	}
	if most := outcomeSize(job); int64(size) > most {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "what came of the program is %d bytes, which cannot be: it is %d at most", size, most)
	}
	text, err := file.Contents(ctx)
	if err != nil {
		return nil, s.failed(err)
	}
	var outcome guest.Outcome
	if err := json.Unmarshal([]byte(text), &outcome); err != nil {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "what came of the program cannot be read: %w", err)
	}
	if outcome.Result == nil && outcome.Kind == "" {
		return nil, atoll.Errorf("run", "", atoll.ErrInternal, "nothing came of the program")
	}
	return &outcome, nil
}

// outcomeSize is how large an Outcome can be: content is in base64, names are as long
// as they may be.
func outcomeSize(job *jobs.Job) int64 {
	return 2*(2*job.MaxOutput+job.MaxContent) + int64(job.MaxFiles+1)*64<<10 + 1<<20
}

// platform is that of containers, which the guest's program is for.
const platform = dagger.Platform("linux/" + runtime.GOARCH)

// An imageConfig is what an image says of its programs.
type imageConfig struct {
	User string
	Env  []struct{ Name, Value string } `json:"envVariables"`
}

// image has an image pulled, and asks what it says. The SDK would ask for each variable.
func (s *session) image(ctx context.Context, ref string) (*imageConfig, error) {
	const query = `query ($platform: Platform, $ref: String!) { container(platform: $platform) { from(address: $ref) { user envVariables { name value } } } }`
	var found struct{ Container struct{ From imageConfig } }
	err := s.client.Do(ctx, &dagger.Request{Query: query, Variables: map[string]any{"platform": platform, "ref": ref}}, &dagger.Response{Data: &found})
	if err != nil {
		return nil, pulled(ref, err)
	}
	return &found.Container.From, nil
}

// pulled is the error of an image that cannot be had.
func pulled(ref string, err error) error {
	kind, text := atoll.ErrUnavailable, strings.ToLower(err.Error())
	says := func(what string) bool { return strings.Contains(text, what) }
	switch {
	case says("access denied"), says("unauthorized"), says("authorization failed"), says("401 "), says("403 "): // registries say it of what is not there, too
		kind = atoll.ErrDenied
	case says(": not found"), says("manifest unknown"), says("name unknown"):
		kind = atoll.ErrNotExist
	case says("invalid reference format"):
		kind = atoll.ErrInvalid
	}
	return atoll.Errorf("run", "", kind, "dagger: image %s: %w", ref, err)
}

// failed is the error of an engine that was asked to run the guest, and so perhaps the
// program.
func (s *session) failed(err error) error {
	if e, ok := errors.AsType[*dagger.ExecError](err); ok {
		said := strings.TrimSpace(e.Stderr) // the guest's own: the program's is in its outcome
		if e.ExitCode == 1 && said != "" {
			return atoll.Errorf("run", "", atoll.ErrInternal, "dagger: %s", said)
		}
		err = errors.New(strings.TrimSuffix(fmt.Sprintf("the guest ended with code %d: %s", e.ExitCode, said), ": "))
	}
	return jobs.Interrupted(fmt.Errorf("dagger: %w", with(err, s.said())))
}

// check refuses what the backend cannot do.
func (b *Backend) check(s *atoll.Spec) error {
	switch mode := s.Network.Mode; {
	case mode == "" || mode == atoll.NetworkNone:
	case mode != atoll.NetworkOn || len(s.Network.Allow) > 0:
		return refuse("network %s: the containers of Dagger have none or all", mode)
	case !b.opts.OpenNetwork:
		return refuse("a program with a network reaches what the engine's containers do, which may be its host: set dagger.open_network to allow that")
	}
	if s.Image == "" {
		return refuse("Dagger has no image of its own: name one")
	}
	if frontmatter.OfMachine(s.Image) {
		return refuse("image %s is on this machine alone, and the engine pulls from registries: name one of a registry's, as with tools.images", s.Image)
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
		return refuse("%s: not in the containers of Dagger", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	return nil
}

func refuse(format string, args ...any) error {
	return atoll.Errorf("run", "", atoll.ErrUnsupported, "dagger: "+format, args...)
}

// Close implements jobs.Backend: sessions end with their jobs.
func (b *Backend) Close() error { return nil }

// Probe says whether the engine answers, without a program. One that the CLI would have to
// start first is not asked: that pulls an image, and runs it with all privileges. The Probe
// is OK then unless there is nothing to start one with, and has a Reason all the same.
func (b *Backend) Probe(ctx context.Context) atoll.Probe {
	p := atoll.Probe{OK: true}
	if b.startsEngine() {
		cli, err := b.cli()
		if err == nil {
			err = b.canStart()
		}
		if err != nil {
			return b.unfit(err)
		}
		p.Reason = fmt.Sprintf("no engine was asked, as dagger.engine names none that runs: for the first program %s starts one with docker or the like, privileged, from an image that it pulls, which takes minutes", cli)
		p.Fix = "set dagger.engine to where one runs, or run a program"
	} else {
		s, err := b.connect(ctx)
		if err != nil {
			return b.unfit(err)
		}
		defer s.close()
		ctx, cancel := context.WithTimeout(ctx, b.opts.Patience)
		defer cancel()
		version, err := s.client.Version(ctx)
		if err != nil {
			return b.unfit(unavailable("the engine does not answer: %v", err))
		}
		p.Notes = append(p.Notes, fmt.Sprintf("engine %s, by %s", version, s.by))
	}
	p.Notes = append(p.Notes,
		"a program costs nothing but the engine's work and disk, which are yours",
		"programs have no limits of memory, CPUs and processes: Dagger has none",
		"what programs have made stays in the engine's cache until that removes it, where no other program finds it")
	if b.opts.OpenNetwork {
		p.Notes = append(p.Notes, "programs with a network reach what the engine's containers do (dagger.open_network)")
	}
	return p
}

// unfit is what a Probe says that has found err.
func (b *Backend) unfit(err error) atoll.Probe {
	p := atoll.Probe{Reason: err.Error(), Fix: "see that the engine runs, where dagger.engine says, and that this user may use it"}
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
		p.Reason = strings.TrimPrefix(e.Err.Error(), "dagger: ") // whose probe it is, is known
	}
	switch _, missing := b.cli(); {
	case b.inSession():
		p.Fix = "start this program in a session that has not ended (dagger run), or set dagger.engine"
	case missing != nil:
		p.Fix = "install Dagger's CLI, or set dagger.cli to its path"
	case b.startsEngine():
		p.Fix = "set dagger.engine to where one runs, or install docker"
	}
	return p
}

var (
	_ jobs.Backend = (*Backend)(nil)
	_ atoll.Prober = (*Backend)(nil)
)
