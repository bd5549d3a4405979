package router

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A member is a Member and what is known of it.
type member struct {
	name  string
	first bool // the default one
	alone bool // the only one
	open  func() (atoll.Provider, error)
	mark  string // a file that is there while it has sandboxes; "" for none
	log   *slog.Logger

	opening sync.Mutex // held while open runs

	mu      sync.Mutex
	leaf    atoll.Provider // nil until it is open
	closed  bool
	used    bool
	problem error // why it could not be asked, the last time it was
}

func newMember(m Member, dir string, log *slog.Logger) *member {
	one := &member{name: m.Name, open: m.Open, log: log}
	if dir != "" {
		one.mark = filepath.Join(dir, m.Name)
		_, err := os.Lstat(one.mark)
		one.used = err == nil
	}
	return one
}

// provider opens the member, if it is not open yet.
func (m *member) provider() (atoll.Provider, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	leaf, closed := m.leaf, m.closed
	m.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed("open")
	case leaf != nil:
		return leaf, nil
	}
	leaf, err := m.open()
	if isMissing(err) { // no sandbox is
		err = atoll.E("open", m.name, atoll.ErrUnavailable, err)
	}
	if err != nil {
		m.note(err)
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaf = leaf
	return leaf, nil
}

func errClosed(op string) error {
	return atoll.Errorf(op, "", atoll.ErrUnavailable, "the provider is closed")
}

// close closes the member for good.
func (m *member) close() error {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	leaf := m.leaf
	m.closed = true
	m.mu.Unlock()
	if leaf == nil {
		return nil
	}
	return leaf.Close()
}

// describe tells of the member what Members does.
func (m *member) describe() atoll.Member {
	d := atoll.Member{Info: atoll.Info{Name: m.name}}
	if leaf, err := m.provider(); err == nil {
		d.Info = leaf.Info()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d.InUse = m.first || m.used
	if m.problem != nil {
		d.Problem = m.problem.Error()
	}
	return d
}

// isUsed reports whether its absence would be noticed: it is the default one, or
// has sandboxes.
func (m *member) isUsed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first || m.used
}

// use notes that the member has sandboxes.
func (m *member) use() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.used {
		m.leaveMark()
	}
}

// made notes that a sandbox of the member has been made. Other programs, which
// may just have been told that there is none, learn of it.
func (m *member) made() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveMark()
}

// leaveMark is use, once more; m.mu is held.
func (m *member) leaveMark() {
	m.used = true
	if m.mark == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(m.mark), 0o700)
	if err == nil {
		err = os.WriteFile(m.mark, nil, 0o600)
	}
	if err == nil {
		now := time.Now() // the kernel's own idea of it is late
		err = os.Chtimes(m.mark, now, now)
	}
	if err != nil {
		m.log.Warn("it cannot be remembered which providers have sandboxes", "err", err)
	}
}

// unuse notes that the member had none at the time when it was asked.
func (m *member) unuse(asked time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if info, err := os.Lstat(m.mark); err == nil && info.ModTime().After(asked) {
		return // somebody has made one since
	}
	m.used = false
	if m.mark == "" {
		return
	}
	if err := os.Remove(m.mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("it cannot be remembered which providers have sandboxes", "err", err)
	}
}

// note takes down whether the member could be asked, and tells when that has
// changed.
func (m *member) note(err error) {
	m.mu.Lock()
	before := m.problem
	m.problem = err
	loud := m.first || m.used
	m.mu.Unlock()
	level := slog.LevelDebug
	switch {
	case err != nil && before == nil:
		if loud {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "the provider "+m.name+" cannot be asked", "err", err)
	case err == nil && before != nil:
		if loud {
			level = slog.LevelInfo
		}
		m.log.Log(context.Background(), level, "the provider "+m.name+" can be asked again")
	}
}

// How long a member may take to answer a question that others answer too.
const (
	patience    = 30 * time.Second
	impatience  = 2 * time.Second // of one that has no sandboxes, as far as is known
	maxRecalled = 10_000          // ids that are remembered
)

// An answer is what a member says.
type answer[T any] struct {
	m   *member
	val T
	err error
}

// ask asks all members at the same time, and returns their answers in order. One
// of several that takes too long has not answered.
func ask[T any](ctx context.Context, members []*member, f func(context.Context, atoll.Provider) (T, error)) []answer[T] {
	answers := make([]answer[T], len(members))
	var all sync.WaitGroup
	for i, m := range members {
		a := &answers[i]
		a.m = m
		if i == len(members)-1 { // this goroutine would only wait
			a.val, a.err = askOne(ctx, m, f)
			break
		}
		all.Go(func() { a.val, a.err = askOne(ctx, m, f) })
	}
	all.Wait()
	return answers
}

func askOne[T any](ctx context.Context, m *member, f func(context.Context, atoll.Provider) (T, error)) (val T, err error) {
	leaf, err := m.provider()
	if err != nil {
		return val, err // noted
	}
	limit := m.patience()
	limited, cancel := context.WithTimeout(m.asideOf(ctx), limit)
	defer cancel()
	val, err = f(limited, leaf)
	switch {
	case ctx.Err() != nil:
		return val, err // which says nothing about m
	case limited.Err() != nil && err != nil:
		err = atoll.Errorf("ask", m.name, atoll.ErrUnavailable, "no answer within %s", limit)
	}
	if isProblem(err) {
		m.note(err)
	} else {
		m.note(nil)
	}
	return val, err
}

// patience is how long the member may take to answer.
func (m *member) patience() time.Duration {
	switch {
	case m.alone:
		return math.MaxInt64 // nobody waits for others' answers
	case m.isUsed():
		return patience
	}
	return impatience
}

type aside struct{}

// asideOf returns the ctx for a question to the member.
func (m *member) asideOf(ctx context.Context) context.Context {
	if m.first {
		return ctx
	}
	return AsideOf(ctx)
}

// Aside reports whether ctx is that of a question to a member other than the
// default one, in case it has what is looked for. That such a call fails is of
// little interest: Options.Log is told once, if there is more to it.
func Aside(ctx context.Context) bool { return ctx.Value(aside{}) != nil }

// AsideOf returns a ctx for a question whose outcome is of interest to its caller alone.
func AsideOf(ctx context.Context) context.Context { return context.WithValue(ctx, aside{}, true) }

// isMissing reports whether the answer is that there is no such thing.
func isMissing(err error) bool {
	k := atoll.KindOf(err)
	return err != nil && (k == atoll.ErrNotFound || k == atoll.ErrNotExist || k == atoll.ErrUnsupported)
}

// isProblem reports whether err says that there was no answer.
func isProblem(err error) bool {
	k := atoll.KindOf(err)
	return err != nil && !isMissing(err) && k != atoll.ErrInvalid && k != atoll.ErrConflict
}

// absence is the error where no member has said yes: that of one which could not
// be asked and has sandboxes, for nobody knows whether it would have; else that
// there is no such thing.
func absence[T any](answers []answer[T]) error {
	for _, a := range answers {
		if !isMissing(a.err) && a.m.isUsed() {
			return a.err
		}
	}
	for _, a := range answers {
		if k := atoll.KindOf(a.err); k == atoll.ErrNotFound || k == atoll.ErrNotExist {
			return a.err
		}
	}
	return answers[0].err
}

// joined puts together what members list. It fails if all of them do.
func joined[T any](ctx context.Context, answers []answer[[]T]) (all []T, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	failed := 0
	for _, a := range answers {
		if a.err != nil {
			failed++
			continue
		}
		all = append(all, a.val...)
	}
	if failed == len(answers) {
		return nil, absence(answers)
	}
	return all, nil
}

// remember notes which member has the sandbox. That the default member has one
// is soon found out.
func (p *Provider) remember(id string, m *member) {
	m.use()
	if m.first {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.where) >= maxRecalled {
		clear(p.where)
	}
	p.where[id] = m
}

// recall returns the member that had the sandbox, nil if it is not known.
func (p *Provider) recall(id string) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.where[id]
}

func (p *Provider) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.where, id)
}

// known returns the member that is known to have the sandbox, by whatever means;
// nil if it is not known.
func (p *Provider) known(ctx context.Context, id string) *member {
	if m := p.recall(id); m != nil || id == "" || p.opts.Known == nil {
		return m
	}
	name, err := p.opts.Known(ctx, id)
	if err != nil {
		p.log.WarnContext(ctx, "where a sandbox is", "sandbox", id, "err", err)
	}
	m := p.member(name)
	if m != nil {
		m.use()
	}
	return m
}
