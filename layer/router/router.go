// Package router is a provider that combines several. Each member creates the
// sandboxes whose Spec names it. Calls about an existing sandbox find the member
// that has it.
//
//	p, err := router.New([]router.Member{
//		{Name: "gvisor", Open: func() (atoll.Provider, error) { return gvisor.New(...) }},
//		{Name: "docker", Open: func() (atoll.Provider, error) { return docker.New(...) }},
//	}, router.Options{Dir: dir})
//
// The first member is the default: for a Spec without a provider, and for Info and
// Probe. The router opens the others when it first needs them, so a member that
// does not work costs nothing until then. A failing member does not hide the
// sandboxes of the others. If a call names it, or needs one of its sandboxes, the
// call returns its error; no other member replaces it.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
)

// A Member is one of the combined providers.
type Member struct {
	// Name is the name in the provider's Info.
	Name string
	// Open creates the provider. The router calls it until it succeeds, and never
	// concurrently.
	Open func() (atoll.Provider, error)
	// OpenEarly means that the provider works before the first call. With Options.Eager
	// the router opens it at once.
	OpenEarly bool
}

// Options configure a Provider. The zero value works.
type Options struct {
	// Dir is a directory in which the router records which members have sandboxes.
	// If such a member is unavailable, the router logs a warning, and cannot report
	// a sandbox as not found. The router creates Dir when it needs it. If it is
	// empty, the router does not record this beyond its process.
	Dir string
	// Projects maps a project to the member that creates its sandboxes, if their
	// spec names none.
	Projects map[string]string
	// Default is called before the default member creates or prepares a sandbox for
	// a spec and a project that name no member. The call returns its error. It may
	// be nil.
	Default func() error
	// Locate returns the name of the member that has the sandbox with an ID, "" if
	// unknown. The router may call it for each ID that the default member does not
	// have. It may be nil.
	Locate func(ctx context.Context, id string) (member string, err error)
	// Eager makes New open the members that have sandboxes. Servers need this,
	// because an open provider does its own maintenance.
	Eager bool
	// Log receives a message when a member becomes unavailable, and when it is
	// available again. nil discards them.
	Log *slog.Logger
}

// A Provider is an atoll.Provider that combines others.
type Provider struct {
	opts      Options
	log       *slog.Logger
	members   []*member // the default one first
	info      atoll.Info
	done      chan struct{} // closed by Close
	closeOnce sync.Once
	creations keymutex.Locks // by ID, and by project and name, held during Create

	mu        sync.Mutex
	locations map[string]*member // by ID of a sandbox that the default member does not have
}

// New returns a provider that combines members, and opens the first of them. Close
// closes the open members. Kinds: ErrInvalid, and those of the first member's Open.
func New(members []Member, opts Options) (*Provider, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{opts: opts, log: opts.Log, done: make(chan struct{}), locations: map[string]*member{}}
	for _, m := range members {
		if !atoll.ValidName(m.Name) || p.memberNamed(m.Name) != nil {
			return nil, atoll.Errorf("open", m.Name, atoll.ErrInvalid, "provider %q: invalid or duplicate name", m.Name)
		}
		p.members = append(p.members, newMember(m, opts.Dir, opts.Log))
	}
	if len(p.members) == 0 {
		return nil, atoll.Errorf("open", "", atoll.ErrInvalid, "no providers given")
	}
	for project, name := range opts.Projects {
		if p.memberNamed(name) == nil {
			return nil, atoll.Errorf("open", project, atoll.ErrInvalid, "project %s: %w", project, p.unknownMemberError(name))
		}
	}
	p.members[0].first, p.members[0].only = true, len(p.members) == 1
	first, err := p.members[0].openLeaf()
	if err != nil {
		return nil, err
	}
	p.info = first.Info()
	for i, m := range p.members {
		if opts.Eager && (m.isUsed() || members[i].OpenEarly) {
			_, _ = m.openLeaf() // records its error
		}
	}
	return p, nil
}

// Info implements atoll.Provider. It returns the Info of the default member.
func (p *Provider) Info() atoll.Info { return p.info }

// Members implements atoll.Combiner. It opens all members.
func (p *Provider) Members(ctx context.Context) ([]atoll.Member, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all := make([]atoll.Member, len(p.members))
	for i, m := range p.members {
		all[i] = m.memberInfo()
	}
	return all, nil
}

// Create implements atoll.Provider. It returns ErrAlreadyExists if another member
// has a sandbox with the ID or name. A member that does not answer at once counts
// as having none.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := p.chooseMember(ctx, spec)
	if err != nil {
		return nil, err
	}
	leaf, err := m.openLeaf()
	if err != nil {
		return nil, err
	}
	s := *spec
	s.Provider = m.name
	free, err := p.reserveKeys(ctx, m, &s)
	if err != nil {
		return nil, err
	}
	defer free()
	sb, err := leaf.Create(ctx, &s)
	if err != nil {
		return nil, err
	}
	p.rememberMember(sb.ID(), m)
	m.recordCreation()
	return sb, nil
}

// chooseMember returns the member that creates a sandbox of spec: the one named by
// the spec, else the one that has its snapshot, else that of its project, else the
// default.
func (p *Provider) chooseMember(ctx context.Context, spec *atoll.Spec) (*member, error) {
	project := cmp.Or(spec.Project, atoll.DefaultProject)
	name := cmp.Or(spec.Provider, p.opts.Projects[project], p.members[0].name)
	m := p.memberNamed(name)
	if m == nil {
		return nil, atoll.E("create", spec.Name, atoll.ErrInvalid, p.unknownMemberError(name))
	}
	if spec.Snapshot != "" && spec.Provider == "" {
		return p.snapshotOwner(ctx, spec.Snapshot, m)
	}
	if spec.Provider == "" && p.opts.Projects[project] == "" && p.opts.Default != nil {
		return m, p.opts.Default()
	}
	return m, nil
}

// reserveKeys reserves the ID and the name of spec for member m until the caller
// calls free; other calls of Create wait. It returns ErrAlreadyExists if another
// member has one of them.
func (p *Provider) reserveKeys(ctx context.Context, m *member, spec *atoll.Spec) (free func(), err error) {
	if len(p.members) == 1 {
		return func() {}, nil
	}
	var frees []func()
	free = func() {
		for _, f := range frees {
			f()
		}
	}
	id, _ := atoll.NormalizeID(spec.ID) // the member refuses an invalid one
	project := cmp.Or(spec.Project, atoll.DefaultProject)
	for _, key := range []struct {
		given string
		key   string
		owner func(ctx context.Context, id string) *member // nil if unknown
		find  func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error)
	}{
		{id, id, p.knownMember, func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error) { return leaf.Get(ctx, id) }},
		{spec.Name, project + "/" + spec.Name, unknownOwner, func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error) {
			return atoll.Resolve(ctx, leaf, project, spec.Name)
		}},
	} {
		if key.given == "" {
			continue
		}
		f, err := p.creations.Lock(ctx, key.key)
		if err != nil {
			free()
			return nil, err
		}
		frees = append(frees, f)
		if other := p.findConflict(ctx, m, key.owner(ctx, key.given), key.find); other != nil {
			free()
			return nil, atoll.Errorf("create", key.given, atoll.ErrAlreadyExists, "sandbox %q exists at provider %s", key.given, other.name)
		}
	}
	return free, nil
}

// conflictTimeout limits the wait of Create for the answers of other members.
var conflictTimeout = 500 * time.Millisecond

// findConflict returns the member, other than m, at which find finds a sandbox. It
// also returns owner, the known owner, if owner does not answer.
func (p *Provider) findConflict(ctx context.Context, m, owner *member, find func(context.Context, atoll.Provider) (atoll.Sandbox, error)) *member {
	ctx, cancel := context.WithTimeout(ctx, conflictTimeout)
	defer cancel()
	others := slices.DeleteFunc(slices.Clone(p.members), func(o *member) bool { return o == m })
	for _, a := range askMembers(ctx, others, find) {
		if a.err == nil || a.m == owner && !isMissing(a.err) {
			return a.m
		}
	}
	return nil
}

// unknownOwner is the owner of a name, which the router does not track.
func unknownOwner(context.Context, string) *member { return nil }

// Get implements atoll.Provider. If no member has the sandbox, but a member that
// has sandboxes is unavailable, it returns the error of that member instead of
// ErrNotFound.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	find := func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error) { return leaf.Get(ctx, n) }
	if m := p.recallMember(n); m != nil {
		a := askMembers(ctx, []*member{m}, find)[0]
		if !isMissing(a.err) {
			return a.val, a.err
		}
		p.forgetMember(n)
	}
	sb, err := p.findSandbox(ctx, n, find)
	if isMissing(err) {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return sb, err
}

// Resolve implements atoll.Resolver, with the errors of Get. If several members
// have the name, the first one wins.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	sb, err := p.findSandbox(ctx, "", func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error) {
		return atoll.Resolve(ctx, leaf, project, name)
	})
	if err != nil {
		return "", err
	}
	return sb.ID(), nil
}

// findSandbox asks the default member, then the known owner of the ID, or all
// others concurrently if that is unknown.
func (p *Provider) findSandbox(ctx context.Context, id string, f func(context.Context, atoll.Provider) (atoll.Sandbox, error)) (atoll.Sandbox, error) {
	answers := askMembers(ctx, p.members[:1], f)
	if answers[0].err != nil && len(p.members) > 1 && ctx.Err() == nil {
		others := p.members[1:]
		if m := p.knownMember(ctx, id); m != nil && m != p.members[0] {
			others = []*member{m}
		}
		answers = append(answers, askMembers(ctx, others, f)...)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, a := range answers {
		if a.err == nil {
			p.rememberMember(a.val.ID(), a.m)
			return a.val, nil
		}
	}
	return nil, missingError(answers)
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	members := p.members
	if f.Provider != "" {
		m := p.memberNamed(f.Provider)
		if m == nil {
			return nil, atoll.E("list", "", atoll.ErrInvalid, p.unknownMemberError(f.Provider))
		}
		members = []*member{m}
	}
	start := time.Now()
	answers := askMembers(ctx, members, func(ctx context.Context, leaf atoll.Provider) ([]atoll.Status, error) { return leaf.List(ctx, f) })
	all, err := joinAnswers(ctx, answers)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if a.err == nil {
			p.recordList(a.m, start, a.val, f)
		}
	}
	slices.SortStableFunc(all, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// recordList records where the sandboxes in list are. If the list is complete and
// empty, it records that m had none at the time start.
func (p *Provider) recordList(m *member, start time.Time, list []atoll.Status, f atoll.Filter) {
	for _, st := range list {
		p.rememberMember(st.ID, m)
	}
	if all := f.Name == "" && f.Project == "" && len(f.Labels) == 0 && len(f.States) == 0; all && len(list) == 0 {
		m.markUnused(start)
	}
}

// Close implements atoll.Provider. It closes the open members.
func (p *Provider) Close() (err error) {
	p.closeOnce.Do(func() {
		close(p.done)
		for _, m := range p.members {
			err = errors.Join(err, m.closeLeaf())
		}
	})
	return err
}

// memberNamed returns the member with a name; nil if there is none.
func (p *Provider) memberNamed(name string) *member {
	for _, m := range p.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// unknownMemberError returns the error for a name that no member has. It lists the
// members.
func (p *Provider) unknownMemberError(name string) error {
	verb, names := "are", p.memberNames()
	if len(names) == 1 {
		verb = "is"
	}
	return fmt.Errorf("provider %q not found: there %s %s", name, verb, strings.Join(names, ", "))
}

// memberNames returns the names of all members.
func (p *Provider) memberNames() []string {
	var names []string
	for _, m := range p.members {
		names = append(names, m.name)
	}
	return names
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Resolver = (*Provider)(nil)
	_ atoll.Combiner = (*Provider)(nil)
)
