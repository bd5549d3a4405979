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

// A member is a Member with its state.
type member struct {
	name     string
	first    bool // the default member
	only     bool // no other member exists
	open     func() (atoll.Provider, error)
	markFile string // exists while the member has sandboxes; "" without Options.Dir
	log      *slog.Logger

	openMu sync.Mutex // held while open runs

	mu      sync.Mutex
	leaf    atoll.Provider // nil until the member is open
	closed  bool
	inUse   bool  // the member has sandboxes, as far as known
	problem error // the error of the last call, if the member was unavailable
}

func newMember(m Member, dir string, log *slog.Logger) *member {
	one := &member{name: m.Name, open: m.Open, log: log}
	if dir != "" {
		one.markFile = filepath.Join(dir, m.Name)
		_, err := os.Lstat(one.markFile)
		one.inUse = err == nil
	}
	return one
}

// openLeaf opens the member, unless it is open, and returns its provider.
func (m *member) openLeaf() (atoll.Provider, error) {
	m.openMu.Lock()
	defer m.openMu.Unlock()
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
	if isMissing(err) { // must not look like a missing sandbox
		err = atoll.E("open", m.name, atoll.ErrUnavailable, err)
	}
	if err != nil {
		m.recordAnswer(err)
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

// closeLeaf closes the member. openLeaf then fails.
func (m *member) closeLeaf() error {
	m.openMu.Lock()
	defer m.openMu.Unlock()
	m.mu.Lock()
	leaf := m.leaf
	m.closed = true
	m.mu.Unlock()
	if leaf == nil {
		return nil
	}
	return leaf.Close()
}

// memberInfo returns the member's entry for Members.
func (m *member) memberInfo() atoll.Member {
	d := atoll.Member{Info: atoll.Info{Name: m.name}}
	if leaf, err := m.openLeaf(); err == nil {
		d.Info = leaf.Info()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d.InUse = m.first || m.inUse
	if m.problem != nil {
		d.Problem = m.problem.Error()
	}
	return d
}

// isUsed reports whether the member is the default one, or has sandboxes.
func (m *member) isUsed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first || m.inUse
}

// markUsed records that the member has sandboxes.
func (m *member) markUsed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.inUse {
		m.writeMark()
	}
}

// recordCreation records that the member has created a sandbox. It updates the time
// of the mark file, so that another program whose List has just found none does not
// delete it.
func (m *member) recordCreation() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writeMark()
}

// writeMark sets inUse and writes the mark file. The caller holds m.mu.
func (m *member) writeMark() {
	m.inUse = true
	if m.markFile == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(m.markFile), 0o700)
	if err == nil {
		err = os.WriteFile(m.markFile, nil, 0o600)
	}
	if err == nil {
		now := time.Now() // the kernel's file times lag behind
		err = os.Chtimes(m.markFile, now, now)
	}
	if err != nil {
		m.log.Warn("cannot record which providers have sandboxes", "err", err)
	}
}

// markUnused records that the member had no sandboxes at the time start.
func (m *member) markUnused(start time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if info, err := os.Lstat(m.markFile); err == nil && info.ModTime().After(start) {
		return // another program has created one since
	}
	m.inUse = false
	if m.markFile == "" {
		return
	}
	if err := os.Remove(m.markFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot record which providers have sandboxes", "err", err)
	}
}

// recordAnswer records whether the member answered; err is nil if it did. It logs a
// change.
func (m *member) recordAnswer(err error) {
	m.mu.Lock()
	before := m.problem
	m.problem = err
	loud := m.first || m.inUse
	m.mu.Unlock()
	level := slog.LevelDebug
	switch {
	case err != nil && before == nil:
		if loud {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "provider "+m.name+" is unavailable", "err", err)
	case err == nil && before != nil:
		if loud {
			level = slog.LevelInfo
		}
		m.log.Log(context.Background(), level, "provider "+m.name+" is available again")
	}
}

// Limits of the router.
const (
	answerTimeout = 30 * time.Second // of one member, in a call to several
	maxLocations  = 10_000           // entries of Provider.locations
)

// unusedAnswerTimeout is the answerTimeout of a member without sandboxes, as far as known.
var unusedAnswerTimeout = 2 * time.Second

// A memberAnswer is the result of a call to one member.
type memberAnswer[T any] struct {
	m   *member
	val T
	err error
}

// askMembers calls f for all members concurrently, and returns the results in
// order. If there are several members, a call that exceeds its time limit fails.
func askMembers[T any](ctx context.Context, members []*member, f func(context.Context, atoll.Provider) (T, error)) []memberAnswer[T] {
	answers := make([]memberAnswer[T], len(members))
	var all sync.WaitGroup
	for i, m := range members {
		a := &answers[i]
		a.m = m
		if i == len(members)-1 { // saves a goroutine
			a.val, a.err = askOne(ctx, m, f)
			break
		}
		all.Go(func() { a.val, a.err = askOne(ctx, m, f) })
	}
	all.Wait()
	return answers
}

// askOne calls f for one member, with a time limit, and records whether the member
// answered.
func askOne[T any](ctx context.Context, m *member, f func(context.Context, atoll.Provider) (T, error)) (val T, err error) {
	leaf, err := m.openLeaf()
	if err != nil {
		return val, err // openLeaf has recorded it
	}
	limit := m.answerLimit()
	limited, cancel := context.WithTimeout(m.asideOf(ctx), limit)
	defer cancel()
	val, err = f(limited, leaf)
	switch {
	case ctx.Err() != nil:
		return val, err // the caller gave up; m may be available
	case limited.Err() != nil && err != nil:
		err = atoll.Errorf("ask", m.name, atoll.ErrUnavailable, "no answer within %s", limit)
	}
	if isProblem(err) {
		m.recordAnswer(err)
	} else {
		m.recordAnswer(nil)
	}
	return val, err
}

// answerLimit returns the time limit for an answer of the member.
func (m *member) answerLimit() time.Duration {
	switch {
	case m.only:
		return math.MaxInt64 // the caller's context decides
	case m.isUsed():
		return answerTimeout
	}
	return unusedAnswerTimeout
}

// asideKey is the context key of AsideOf.
type asideKey struct{}

// asideOf returns ctx for a call to the member: AsideOf(ctx), unless it is the
// default one.
func (m *member) asideOf(ctx context.Context) context.Context {
	if m.first {
		return ctx
	}
	return AsideOf(ctx)
}

// IsOptional reports whether ctx comes from AsideOf: the router calls a member other
// than the default one, which may not have the sandbox. A failure of such a call is
// rarely of interest. The router logs it if it matters.
func IsOptional(ctx context.Context) bool { return ctx.Value(asideKey{}) != nil }

// AsideOf returns ctx for a call whose failure is of interest to the caller only.
func AsideOf(ctx context.Context) context.Context { return context.WithValue(ctx, asideKey{}, true) }

// isMissing reports whether err means that the member does not have the object.
func isMissing(err error) bool {
	k := atoll.KindOf(err)
	return err != nil && (k == atoll.ErrNotFound || k == atoll.ErrNotExist || k == atoll.ErrUnsupported)
}

// isProblem reports whether err means that the member is unavailable.
func isProblem(err error) bool {
	k := atoll.KindOf(err)
	return err != nil && !isMissing(err) && k != atoll.ErrInvalid && k != atoll.ErrConflict
}

// missingError returns the error of a call in which no member found the object. If
// a member with sandboxes was unavailable, that is its error, because it may have
// the object. Otherwise it is a not-found error.
func missingError[T any](answers []memberAnswer[T]) error {
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

// joinAnswers concatenates the lists of all members. It fails only if all members
// failed.
func joinAnswers[T any](ctx context.Context, answers []memberAnswer[[]T]) (all []T, err error) {
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
		return nil, missingError(answers)
	}
	return all, nil
}

// rememberMember records which member has the sandbox. It stores no location for
// the default member, which findSandbox asks first.
func (p *Provider) rememberMember(id string, m *member) {
	m.markUsed()
	if m.first {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.locations) >= maxLocations {
		clear(p.locations)
	}
	p.locations[id] = m
}

// recallMember returns the member recorded for the sandbox; nil if unknown.
func (p *Provider) recallMember(id string) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locations[id]
}

// forgetMember deletes the location of a sandbox.
func (p *Provider) forgetMember(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.locations, id)
}

// knownMember returns the member that has the sandbox, according to the recorded
// locations or Options.Locate; nil if unknown.
func (p *Provider) knownMember(ctx context.Context, id string) *member {
	if m := p.recallMember(id); m != nil || id == "" || p.opts.Locate == nil {
		return m
	}
	name, err := p.opts.Locate(ctx, id)
	if err != nil {
		p.log.WarnContext(ctx, "cannot look up the provider of a sandbox", "sandbox", id, "err", err)
	}
	m := p.memberNamed(name)
	if m != nil {
		m.markUsed()
	}
	return m
}
