package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
)

// readSizes replaces sizes like "10m" in the rules of a policy by numbers.
func readSizes(tree any) error {
	const field = "bytes_per_minute"
	policy, _ := tree.(map[string]any)
	rules, _ := policy["rules"].([]any)
	for _, item := range rules {
		rule, _ := item.(map[string]any)
		text, ok := rule[field].(string)
		if !ok {
			continue
		}
		n, err := atoll.ParseBytes(text)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		rule[field] = int64(n)
	}
	return nil
}

// A Policy has the lists of a file of --policy. Its fields have the names of the API.
type Policy struct {
	Allow   []string            `json:"allow"`
	Deny    []string            `json:"deny"`
	Rules   []atoll.NetworkRule `json:"rules"`
	Secrets []atoll.Secret      `json:"secrets"`
}

// LoadPolicy reads a policy from a file in YAML. It fails at fields that a Policy does not have.
func LoadPolicy(name string) (p Policy, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return p, fmt.Errorf("policy: %w", err)
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return p, fmt.Errorf("policy %s: %w", name, err)
	}
	if err := readSizes(tree); err != nil {
		return p, fmt.Errorf("policy %s: %w", name, err)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return p, fmt.Errorf("policy %s: the names of fields must be text: %w", name, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return p, fmt.Errorf("policy %s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	return p, nil
}
