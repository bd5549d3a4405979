package recipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// FindSecrets returns the secrets of the recipe whose value is in the user's environment, with that variable as their source. get
// returns the value of a variable, like os.Getenv. FindSecrets fails with ErrNotExist if a group has none.
func (r *Recipe) FindSecrets(get func(name string) string) ([]atoll.Secret, error) {
	var found []atoll.Secret
	groups := map[string]bool{} // whether one is found
	for i := range r.Secrets {
		s := &r.Secrets[i]
		if s.Group != "" {
			groups[s.Group] = groups[s.Group] || false
		}
		for _, variable := range s.listSources() {
			if get(variable) == "" {
				continue
			}
			found = append(found, atoll.Secret{Name: s.Name, Hosts: slices.Clone(s.Hosts), Source: "env:" + variable})
			if s.Group != "" {
				groups[s.Group] = true
			}
			break
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		if !groups[group] {
			return nil, atoll.E("agent", r.Name, atoll.ErrNotExist, fmt.Errorf("needs a key: set %s", r.listVariables(group)))
		}
	}
	return found, nil
}

// listVariables returns the variables that may have a secret of a group, as words.
func (r *Recipe) listVariables(group string) string {
	var names []string
	for i := range r.Secrets {
		if s := &r.Secrets[i]; s.Group == group {
			for _, name := range s.listSources() {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
