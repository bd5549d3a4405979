package auth

import (
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A KeySpec is the request for an API key. It is pure data.
type KeySpec struct {
	Name string `json:"name"` // unique among keys that are not revoked; see ValidName
	// Role is RoleAdmin or RoleProject. Empty means RoleProject.
	Role string `json:"role,omitempty"`
	// Projects are the projects that a key with RoleProject may use, at least one.
	Projects []string `json:"projects,omitempty"`
	// Account owns conversations. All keys of an account have the same role and projects. Empty
	// means DefaultAccount for RoleAdmin, or else a name derived from the projects.
	Account string `json:"account,omitempty"`
	// TTL is the lifetime of the key; 0 means no expiry.
	TTL atoll.Duration `json:"ttl,omitzero"`
}

// A Key describes an API key without its secret, of which the server stores only a hash.
type Key struct {
	ID       string    `json:"id"`                 // 16 hex digits
	Name     string    `json:"name"`               // for people
	Account  string    `json:"account"`            // the account that owns its conversations
	Role     string    `json:"role"`               // rights of the key
	Projects []string  `json:"projects,omitempty"` // the projects that it may use
	Created  time.Time `json:"created"`            // when it was created
	Rotated  time.Time `json:"rotated,omitzero"`   // last change of the secret
	OldUntil time.Time `json:"old_until,omitzero"` // expiry of the previous secret
	Expires  time.Time `json:"expires,omitzero"`   // when it becomes invalid; zero means never
	Revoked  time.Time `json:"revoked,omitzero"`   // when it was revoked; zero means that it was not
	Used     time.Time `json:"used,omitzero"`      // last use, to within some minutes
}

// Valid reports whether k is neither revoked nor expired at the time now.
func (k Key) Valid(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// A NewKey is a key with its secret, which is available only once.
type NewKey struct {
	Key
	Secret string `json:"secret"` // the bearer token
}

// DefaultRotateGrace is the default time for which the old secret of a rotated key remains valid.
const DefaultRotateGrace = atoll.Duration(time.Hour)

// WithDefaults returns s with its empty fields filled in. Kinds: ErrInvalid.
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
	// Retain the order: the first project is the default of calls without one.
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
		return bad("role %s needs at least one project; for all projects use role %s", RoleProject, RoleAdmin)
	case s.Role == RoleAdmin && len(s.Projects) > 0:
		return bad("role %s covers all projects; name none or use role %s", RoleAdmin, RoleProject)
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
		return bad("account %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Account)
	}
	return s, nil
}
