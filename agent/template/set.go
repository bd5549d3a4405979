package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// A Set knows templates by name. Its methods may be called at once from many goroutines.
type Set struct {
	mu      sync.RWMutex
	entries map[string]*entry         // replaced as a whole: what was made from files reads it later
	hooks   map[string]hooks.HookFunc // that files can name
	normal  string                    // the template of those who name none
}

// An entry is one template.
type entry struct {
	from  string // where it is from, for people; "" for those that every Set has
	make  func(agentID string) (*Template, error)
	under *entry // of that name before; nil if there was none
}

// NewSet returns a Set of claude-code, codex and shell. claude-code is also called 1, and
// is the template of those who name none.
func NewSet() *Set {
	s := &Set{entries: map[string]*entry{}, hooks: map[string]hooks.HookFunc{}, normal: ClaudeCode}
	for name, make := range builtins() {
		s.entries[name] = &entry{make: make}
	}
	return s
}

// Register adds a template. make is called each time that one is asked for, with the id
// of the agent, which may be "", and returns one that is the caller's own; it must not
// call the Set. One of the templates that every Set has can be replaced so.
//
// Kinds: ErrInvalid (the name), ErrAlreadyExists.
func (s *Set) Register(name string, make func(agentID string) (*Template, error)) error {
	if !atoll.ValidName(name) {
		return atoll.Errorf("template", name, atoll.ErrInvalid, "name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.entries)
	if err := put(all, name, &entry{from: "the program itself", make: make}); err != nil {
		return err
	}
	s.entries = all
	return nil
}

// put adds an entry to entries.
func put(entries map[string]*entry, name string, e *entry) error {
	if of, taken := aliases[name]; taken {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "that is another name of %s", of)
	}
	have := entries[name]
	if have != nil && have.from != "" {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "there are two of that name: one from %s, one from %s", have.from, e.from)
	}
	e.under = have
	entries[name] = e
	return nil
}

// RegisterHook adds a hook that files can name. Kinds: ErrInvalid (the name),
// ErrAlreadyExists.
func (s *Set) RegisterHook(name string, hook hooks.HookFunc) error {
	if !atoll.ValidName(name) || hook == nil {
		return atoll.Errorf("template", name, atoll.ErrInvalid, "a hook needs a name of letters, digits, '-' or '_', and something to do")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hooks[name] != nil || slices.Contains(hookNames, name) {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "there is a hook of that name")
	}
	s.hooks[name] = hook
	return nil
}

// SetDefault says which template is that of those who name none. Kinds: ErrInvalid (there
// is none of that name).
func (s *Set) SetDefault(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[plain(name)] == nil {
		return unsupported(name, s.entries)
	}
	s.normal = plain(name)
	return nil
}

// Names are those of all templates, sorted.
func (s *Set) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// Get returns a template, made for an agent ("" for none); "" is the default one. It
// is valid; see Validate. Kinds: ErrInvalid (there is none of that name: the known ones
// are named), those of the function that makes it.
func (s *Set) Get(name, agentID string) (*Template, error) {
	if agentID != "" && !atoll.ValidName(agentID) {
		return nil, atoll.Errorf("template", "", atoll.ErrInvalid, "agent %.100q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", agentID)
	}
	s.mu.RLock()
	name = plain(cmp.Or(name, s.normal))
	e := s.entries[name]
	var err error
	if e == nil {
		err = unsupported(name, s.entries)
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	return e.template(name, agentID)
}

// template makes the template of an entry that is called name.
func (e *entry) template(name, agentID string) (*Template, error) {
	t, err := e.make(agentID)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, atoll.Errorf("template", name, atoll.ErrInternal, "what is registered for it made none")
	}
	t.Name = name
	return t, t.Validate()
}

// plain is the name that a template is known by.
func plain(name string) string { return cmp.Or(aliases[name], name) }

// unsupported is the error of a name that none of entries has.
func unsupported(name string, entries map[string]*entry) error {
	known := slices.Sorted(maps.Keys(entries))
	shown := name
	if !atoll.ValidName(name) {
		shown = fmt.Sprintf("%.100q", name)
	}
	hint := ""
	if near := suggest.Of(name, known); near != "" && atoll.ValidName(name) {
		hint = fmt.Sprintf("; the nearest is %s", near)
	}
	return atoll.Errorf("", "", atoll.ErrInvalid, "unsupported provider: %s: known are %s%s", shown, strings.Join(known, ", "), hint)
}
