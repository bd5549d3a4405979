package config

import (
	"fmt"
	"strings"
)

// FindProvider returns the built-in provider or the plugin called name.
func (c *Config) FindProvider(name string) (Entry, error) {
	if e, ok := BuiltIn(name); ok {
		return e, nil
	}
	if e, ok := c.pluginEntry(name); ok {
		return e, nil
	}
	var names []string
	for _, e := range Providers() {
		names = append(names, e.Name)
	}
	return Entry{}, fmt.Errorf("%q: use one of %s, or install the program atoll-%s beside atoll or in PATH", name, strings.Join(names, ", "), name)
}

// BuiltIn returns the built-in provider called name.
func BuiltIn(name string) (Entry, bool) {
	for _, e := range Providers() {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}
