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
	only bool // the only one
	open  func() (atoll.Provider, error)
	markFile  string // a file that is there while it has sandboxes; "" for none
	log   *slog.Logger

	openMu sync.Mutex // held while open runs

	mu      sync.Mutex
	leaf    atoll.Provider // nil until it is open
	closed  bool
	inUse    bool
	problem error // why it could not be asked, the last time it was
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

// openLeaf opens the member, if it is not open yet.
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
	if isMissing(err) { // no sandbox is
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

// closeLeaf closes the member for good.
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

// memberInfo tells of the member what Members does.
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

// isUsed reports whether its absence would be noticed: it is the default one, or
// has sandboxes.
func (m *member) isUsed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first || m.inUse
}

// markUsed notes that the member has sandboxes.
func (m *member) markUsed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.inUse {
		m.writeMark()
	}
}

// recordCreation notes that a sandbox of the member has been made. Other programs, which
// may just have been told that there is none, learn of it.
func (m *member) recordCreation() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writeMark()
}

// writeMark is use, once more; m.mu is held.
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
		now := time.Now() // the kernel's own idea of it is late
		err = os.Chtimes(m.markFile, now, now)
	}
	if err != nil {
		m.log.Warn("it cannot be remembered which providers have sandboxes", "err", err)
	}
}

// markUnused notes that the member had none at the time when it was asked.
func (m *member) markUnused(asked time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if info, err := os.Lstat(m.markFile); err == nil && info.ModTime().After(asked) {
		return // somebody has made one since
	}
	m.inUse = false
	if m.markFile == "" {
		return
	}
	if err := os.Remove(m.markFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("it cannot be remembered which providers have sandboxes", "err", err)
	}
}

// recordAnswer takes down whether the member could be asked, and tells when that has
// changed.
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
	answerTimeout    = 30 * time.Second
	unusedAnswerTimeout  = 2 * time.Second // of one that has no sandboxes, as far as is known
	maxLocations = 10_000          // ids that are remembered
)

// An answer is what a member says.
type memberAnswer[T any] struct {
	m   *member
	val T
	err error
}

// askMembers asks all members at the same time, and returns their answers in order. One
// of several that takes too long has not answered.
func askMembers[T any](ctx context.Context, members []*member, f func(context.Context, atoll.Provider) (T, error)) []memberAnswer[T] {
	answers := make([]memberAnswer[T], len(members))
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
	leaf, err := m.openLeaf()
	if err != nil {
		return val, err // noted
	}
	limit := m.answerLimit()
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
		m.recordAnswer(err)
	} else {
		m.recordAnswer(nil)
	}
	return val, err
}

// answerLimit is how long the member may take to answer.
func (m *member) answerLimit() time.Duration {
	switch {
	case m.only:
		return math.MaxInt64 // nobody waits for others' answers
	case m.isUsed():
		return answerTimeout
	}
	return unusedAnswerTimeout
}

type asideKey struct{}

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
func Aside(ctx context.Context) bool { return ctx.Value(asideKey{}) != nil }

// AsideOf returns a ctx for a question whose outcome is of interest to its caller alone.
func AsideOf(ctx context.Context) context.Context { return context.WithValue(ctx, asideKey{}, true) }

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

// missingError is the error where no member has said yes: that of one which could not
// be asked and has sandboxes, for nobody knows whether it would have; else that
// there is no such thing.
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

// joinAnswers puts together what members list. It fails if all of them do.
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

// rememberMember notes which member has the sandbox. That the default member has one
// is soon found out.
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

// recallMember returns the member that had the sandbox, nil if it is not known.
func (p *Provider) recallMember(id string) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locations[id]
}

func (p *Provider) forgetMember(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.locations, id)
}

// knownMember returns the member that is known to have the sandbox, by whatever means;
// nil if it is not known.
func (p *Provider) knownMember(ctx context.Context, id string) *member {
	if m := p.recallMember(id); m != nil || id == "" || p.opts.Known == nil {
		return m
	}
	name, err := p.opts.Known(ctx, id)
	if err != nil {
		p.log.WarnContext(ctx, "where a sandbox is", "sandbox", id, "err", err)
	}
	m := p.memberNamed(name)
	if m != nil {
		m.markUsed()
	}
	return m
}
