// Package router is a provider made of several, each of which makes the
// sandboxes whose Spec names it. Calls about what is there already find it at
// whichever it is.
//
//	p, err := router.New([]router.Member{
//		{Name: "gvisor", Open: func() (atoll.Provider, error) { return gvisor.New(...) }},
//		{Name: "docker", Open: func() (atoll.Provider, error) { return docker.New(...) }},
//	}, router.Options{Dir: dir})
//
// The first one is the default: of specs that name none, of Info and of Probe.
// The others are opened when they are first needed, so that one which is not
// there costs nothing. One that fails does not hide what the others have; when
// it is asked for by name, or has the sandbox that is asked for, its error is
// given, and no other stands in for it.
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
)

// A Member is one of the providers.
type Member struct {
	// Name is that of the provider's Info.
	Name string
	// Open makes the provider. It is called until it succeeds, and never twice
	// at the same time.
	Open func() (atoll.Provider, error)
	// Ahead says that the provider does something before anybody asks it to: with
	// Options.Eager it is opened at once.
	Ahead bool
}

// Options configure a Provider; their zero value will do.
type Options struct {
	// Dir remembers, longer than this process, which members have sandboxes: not
	// to reach one of those is worth a warning, and makes it unknown whether
	// there is a sandbox that nobody else has. It is made when it is needed.
	// Empty means that it is not remembered.
	Dir string
	// Projects names the member that makes the sandboxes of a project which name
	// none.
	Projects map[string]string
	// Default is asked before the default member makes a sandbox, or prepares one, because
	// nobody says who is to: its error is that of the call. nil has none.
	Default func() error
	// Known says which member has the sandbox of an id, "" if it is not known.
	// It may be asked for every id that the default member does not have. nil
	// knows none.
	Known func(ctx context.Context, id string) (member string, err error)
	// Eager opens the members that have sandboxes at once, for servers: a
	// provider looks after what is due for as long as it is open.
	Eager bool
	// Log is told when a member cannot be asked any longer, and when it can
	// again. nil discards.
	Log *slog.Logger
}

// A Provider is an atoll.Provider made of others.
type Provider struct {
	opts    Options
	log     *slog.Logger
	members []*member // the default one first
	info    atoll.Info
	done    chan struct{} // closed by Close
	closeOnce sync.Once

	mu     sync.Mutex
	locations  map[string]*member       // of sandboxes that the default member does not have
	creations map[string]chan struct{} // ids and names that a Create is at; closed when it has ended
}

// New returns a provider made of members, and opens the first of them. Close
// closes those that were opened. Kinds: ErrInvalid, and what opening the first
// one gives.
func New(members []Member, opts Options) (*Provider, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{opts: opts, log: opts.Log, done: make(chan struct{}), locations: map[string]*member{}, creations: map[string]chan struct{}{}}
	for _, m := range members {
		if !atoll.ValidName(m.Name) || p.memberNamed(m.Name) != nil {
			return nil, atoll.Errorf("open", m.Name, atoll.ErrInvalid, "provider %q: is no name, or is there twice", m.Name)
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
		if opts.Eager && (m.isUsed() || members[i].Ahead) {
			_, _ = m.openLeaf() // it notes why not
		}
	}
	return p, nil
}

// Info implements atoll.Provider: it is that of the default member.
func (p *Provider) Info() atoll.Info { return p.info }

// Members implements atoll.Combiner. It opens those that are not open yet.
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

// Create implements atoll.Provider. Another member's sandbox of that id or name
// is ErrAlreadyExists; a member that does not answer at once is taken to have
// none.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
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

// chooseMember returns the member that makes a sandbox of spec: the one it names, else
// the one that has its snapshot, else its project's, else the default one.
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

// reserveKeys keeps the id and the name of spec, which m is to make, from other
// calls of Create until free is called, if no other member has them.
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
	id, _ := atoll.NormalizeID(spec.ID) // spec is valid
	project := cmp.Or(spec.Project, atoll.DefaultProject)
	for _, key := range []struct {
		given string
		key   string
		owner func(ctx context.Context, id string) *member // as far as it is known
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
		f, err := p.lockKey(ctx, key.key)
		if err != nil {
			free()
			return nil, err
		}
		frees = append(frees, f)
		if other := p.findConflict(ctx, m, key.owner(ctx, key.given), key.find); other != nil {
			free()
			return nil, atoll.Errorf("create", key.given, atoll.ErrAlreadyExists, "the provider %s has a sandbox %q already", other.name, key.given)
		}
	}
	return free, nil
}

// lockKey waits until no other call has the key, and has it until free is called.
func (p *Provider) lockKey(ctx context.Context, key string) (free func(), err error) {
	for {
		p.mu.Lock()
		busy, taken := p.creations[key]
		if !taken {
			mine := make(chan struct{})
			p.creations[key] = mine
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.creations, key)
				close(mine)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// conflictTimeout is how long a Create waits for what other members say.
const conflictTimeout = 500 * time.Millisecond

// findConflict returns the member, other than m, at which find finds a sandbox, or which
// is known to be its owner and cannot be asked.
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

// unknownOwner is where a name is known to be.
func unknownOwner(context.Context, string) *member { return nil }

// Get implements atoll.Provider. A sandbox that no member has is ErrNotFound,
// unless one that has sandboxes cannot be asked: then that is the error.
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

// Resolve implements atoll.Resolver, as Get does. The first member that has the
// name wins.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	sb, err := p.findSandbox(ctx, "", func(ctx context.Context, leaf atoll.Provider) (atoll.Sandbox, error) {
		return atoll.Resolve(ctx, leaf, project, name)
	})
	if err != nil {
		return "", err
	}
	return sb.ID(), nil
}

// findSandbox asks the default member, then the one that is known to have the id, else
// all others at the same time.
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
	asked := time.Now()
	answers := askMembers(ctx, members, func(ctx context.Context, leaf atoll.Provider) ([]atoll.Status, error) { return leaf.List(ctx, f) })
	all, err := joinAnswers(ctx, answers)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if a.err == nil {
			p.recordList(a.m, asked, a.val, f)
		}
	}
	slices.SortStableFunc(all, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// recordList notes what a List of m found, which was asked for then.
func (p *Provider) recordList(m *member, asked time.Time, list []atoll.Status, f atoll.Filter) {
	for _, st := range list {
		p.rememberMember(st.ID, m)
	}
	if all := f.Name == "" && f.Project == "" && len(f.Labels) == 0 && len(f.States) == 0; all && len(list) == 0 {
		m.markUnused(asked)
	}
}

// Close implements atoll.Provider: it closes the members that were opened.
func (p *Provider) Close() (err error) {
	p.closeOnce.Do(func() {
		close(p.done)
		for _, m := range p.members {
			err = errors.Join(err, m.closeLeaf())
		}
	})
	return err
}

// memberNamed finds a member by its name; nil if there is none.
func (p *Provider) memberNamed(name string) *member {
	for _, m := range p.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// unknownMemberError says that there is no member of that name, and which there are.
func (p *Provider) unknownMemberError(name string) error {
	verb, names := "are", p.memberNames()
	if len(names) == 1 {
		verb = "is"
	}
	return fmt.Errorf("provider %q not found: there %s %s", name, verb, strings.Join(names, ", "))
}

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
