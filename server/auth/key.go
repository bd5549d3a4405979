package auth

import (
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A KeySpec says what an API key is to be. It is pure data.
type KeySpec struct {
	Name string `json:"name"` // unique among keys that are not revoked; see ValidName
	// Role is RoleAdmin or RoleProject, which is what empty means.
	Role string `json:"role,omitempty"`
	// Projects are those that a key with RoleProject may use, at least one.
	Projects []string `json:"projects,omitempty"`
	// Account is the one that owns conversations. Keys of one account have the same
	// role and projects. Empty means DefaultAccount for RoleAdmin, else one that is
	// named after the projects.
	Account string `json:"account,omitempty"`
	// TTL is how long the key is good for; 0 means until it is revoked.
	TTL atoll.Duration `json:"ttl,omitzero"`
}

// A Key is what is known of an API key. Its secret is not: only a hash of that is
// kept.
type Key struct {
	ID       string    `json:"id"` // 16 hex digits
	Name     string    `json:"name"`
	Account  string    `json:"account"`
	Role     string    `json:"role"`
	Projects []string  `json:"projects,omitempty"`
	Created  time.Time `json:"created"`
	Rotated  time.Time `json:"rotated,omitzero"`   // when it last got another secret
	OldUntil time.Time `json:"old_until,omitzero"` // until when the secret before that is good
	Expires  time.Time `json:"expires,omitzero"`
	Revoked  time.Time `json:"revoked,omitzero"`
	Used     time.Time `json:"used,omitzero"` // last, give or take some minutes
}

// Valid reports whether k is good at a time.
func (k Key) Valid(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// A NewKey is a key with its secret, which is shown once.
type NewKey struct {
	Key
	Secret string `json:"secret"` // the bearer token
}

// DefaultRotateGrace is how long the old secret of a key stays good that is
// rotated, unless it is said.
const DefaultRotateGrace = atoll.Duration(time.Hour)

// WithDefaults returns s with what is empty filled in, or what is wrong with it, as
// ErrInvalid.
func (s KeySpec) WithDefaults() (KeySpec, error) {
	bad := func(format string, args ...any) (KeySpec, error) {
		return KeySpec{}, atoll.Errorf("create key", s.Name, atoll.ErrInvalid, format, args...)
	}
	if !atoll.ValidName(s.Name) {
		return bad("name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Name)
	}
	if s.Role == "" {
		s.Role = RoleProject
	}
	for _, p := range s.Projects {
		if !atoll.ValidName(p) {
			return bad("project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", p)
		}
	}
	// The first one is that of calls which name none: their order stays.
	var once []string
	for _, p := range s.Projects {
		if !slices.Contains(once, p) {
			once = append(once, p)
		}
	}
	s.Projects = once
	switch {
	case s.Role != RoleAdmin && s.Role != RoleProject:
		return bad("role %q: use %s or %s", s.Role, RoleAdmin, RoleProject)
	case s.Role == RoleProject && len(s.Projects) == 0:
		return bad("a key with the role %s needs a project: name those that it may use, or give it the role %s", RoleProject, RoleAdmin)
	case s.Role == RoleAdmin && len(s.Projects) > 0:
		return bad("a key with the role %s may use all projects: name none, or give it the role %s", RoleAdmin, RoleProject)
	case s.TTL < 0:
		return bad("ttl %s: must be positive, or 0 for a key that does not expire", s.TTL)
	}
	if s.Account == "" {
		s.Account = DefaultAccount
		if s.Role == RoleProject {
			s.Account = RoleProject
			for _, p := range slices.Sorted(slices.Values(s.Projects)) {
				s.Account += "_" + p
			}
		}
	}
	if !atoll.ValidName(s.Account) {
		return bad("account %q: name one, with a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Account)
	}
	return s, nil
}
