package config

import (
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Account is who may use the server over TCP, besides whoever has the
// server's own token.
type Account struct {
	Name  string
	Role  string // "" means the default one
	Token Secret
}

// parseAccount reads "NAME[:ROLE]=REFERENCE", where the reference is that of
// the account's token.
func parseAccount(text, home string) (Account, error) {
	who, ref, ok := strings.Cut(text, "=")
	name, role, withRole := strings.Cut(who, ":")
	if !ok || !atoll.ValidName(name) || withRole && !atoll.ValidName(role) {
		return Account{}, fmt.Errorf("write it like NAME=env:VARIABLE or NAME:ROLE=file:/path, names without spaces")
	}
	a := Account{Name: name, Role: role}
	if err := a.Token.parse(ref, "", home); err != nil {
		return Account{}, fmt.Errorf("token of %s: %w", name, err)
	}
	return a, nil
}

// accounts are those that c names.
func (c *Config) accounts() ([]Account, error) {
	var all []Account
	for _, text := range c.Accounts {
		a, err := parseAccount(text, homeDir(nil))
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// Tokens reveals the tokens of the accounts, and whose they are. One that two
// have is ErrInvalid.
func (c *Config) Tokens() (map[string]Account, error) {
	all, err := c.accounts()
	if err != nil {
		return nil, atoll.E("config", "accounts", atoll.ErrInvalid, err)
	}
	tokens := map[string]Account{}
	for _, a := range all {
		token, err := a.Token.Reveal()
		if err != nil {
			return nil, atoll.E("config", "accounts", atoll.ErrInvalid, err)
		}
		if other, ok := tokens[token]; ok {
			return nil, atoll.Errorf("config", "accounts", atoll.ErrInvalid, "%s and %s have the same token", other.Name, a.Name)
		}
		tokens[token] = a
	}
	return tokens, nil
}
