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

// A Set holds templates by name. Its methods may be called concurrently.
type Set struct {
	mu          sync.RWMutex
	entries     map[string]*entry         // replaced as a whole, since templates from files read it later
	hooks       map[string]hooks.HookFunc // that files can name
	defaultName string                    // the default template
}

// An entry is one template.
type entry struct {
	from     string // origin for errors; "" for built-in templates
	make     func(agentID string) (*Template, error)
	replaced *entry // the replaced entry of that name; nil if there was none
}

// NewSet returns a Set of claude-code, codex and shell. claude-code has the alias 1,
// and is the default.
func NewSet() *Set {
	s := &Set{entries: map[string]*entry{}, hooks: map[string]hooks.HookFunc{}, defaultName: ClaudeCode}
	for name, make := range builtinTemplates() {
		s.entries[name] = &entry{make: make}
	}
	return s
}

// Register adds a template. Each Get calls make with the id of the agent, which may be
// "", and make returns a new template; it must not call the Set. A built-in template
// can be replaced this way.
//
// Kinds: ErrInvalid (the name), ErrAlreadyExists.
func (s *Set) Register(name string, make func(agentID string) (*Template, error)) error {
	if !atoll.ValidName(name) {
		return atoll.Errorf("template", name, atoll.ErrInvalid, "name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.entries)
	if err := putEntry(all, name, &entry{from: "the program itself", make: make}); err != nil {
		return err
	}
	s.entries = all
	return nil
}

// putEntry adds an entry to entries.
func putEntry(entries map[string]*entry, name string, e *entry) error {
	if of, taken := aliases[name]; taken {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "name is an alias of %s", of)
	}
	have := entries[name]
	if have != nil && have.from != "" {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "two templates have this name: one from %s, one from %s", have.from, e.from)
	}
	e.replaced = have
	entries[name] = e
	return nil
}

// RegisterHook adds a hook that files can name. Kinds: ErrInvalid (the name),
// ErrAlreadyExists.
func (s *Set) RegisterHook(name string, hook hooks.HookFunc) error {
	if !atoll.ValidName(name) || hook == nil {
		return atoll.Errorf("template", name, atoll.ErrInvalid, "a hook needs a function, and a name of letters, digits, '-' or '_'")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hooks[name] != nil || slices.Contains(hookNames, name) {
		return atoll.Errorf("template", name, atoll.ErrAlreadyExists, "a hook with this name exists")
	}
	s.hooks[name] = hook
	return nil
}

// SetDefault sets the default template. Kinds: ErrInvalid (no such template).
func (s *Set) SetDefault(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[resolveAlias(name)] == nil {
		return unknownTemplate(name, s.entries)
	}
	s.defaultName = resolveAlias(name)
	return nil
}

// Names returns the names of all templates, sorted.
func (s *Set) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// Get returns a template made for an agent ("" for none); the name "" means the default
// template. The template is valid; see Validate. Kinds: ErrInvalid (no such template;
// the error lists the known ones), and those of the function that makes it.
func (s *Set) Get(name, agentID string) (*Template, error) {
	if agentID != "" && !atoll.ValidName(agentID) {
		return nil, atoll.Errorf("template", "", atoll.ErrInvalid, "agent %.100q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", agentID)
	}
	s.mu.RLock()
	name = resolveAlias(cmp.Or(name, s.defaultName))
	e := s.entries[name]
	var err error
	if e == nil {
		err = unknownTemplate(name, s.entries)
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	return e.makeTemplate(name, agentID)
}

// makeTemplate makes the template of an entry under the given name.
func (e *entry) makeTemplate(name, agentID string) (*Template, error) {
	t, err := e.make(agentID)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, atoll.Errorf("template", name, atoll.ErrInternal, "its function returned no template")
	}
	t.Name = name
	return t, t.Validate()
}

// resolveAlias returns the name of a template for an alias or a name.
func resolveAlias(name string) string { return cmp.Or(aliases[name], name) }

// unknownTemplate returns the error for an unknown name.
func unknownTemplate(name string, entries map[string]*entry) error {
	known := slices.Sorted(maps.Keys(entries))
	shown := name
	if !atoll.ValidName(name) {
		shown = fmt.Sprintf("%.100q", name)
	}
	hint := ""
	if near := suggest.Closest(name, known); near != "" && atoll.ValidName(name) {
		hint = fmt.Sprintf("; the nearest is %s", near)
	}
	return atoll.Errorf("", "", atoll.ErrInvalid, "unsupported provider: %s: known are %s%s", shown, strings.Join(known, ", "), hint)
}
