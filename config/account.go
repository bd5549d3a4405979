package config

import (
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An Account may use the server over TCP with a token of its own, besides the server's token.
type Account struct {
	auth.Account
	Token Secret
}

// parseAccount parses "NAME[:ROLE[:PROJECTS]]=REFERENCE". REFERENCE refers to the account's token.
func parseAccount(text, home string) (Account, error) {
	who, ref, ok := strings.Cut(text, "=")
	account, err := auth.ParseAccount(who)
	if !ok || err != nil {
		return Account{}, fmt.Errorf("write it like NAME=env:VARIABLE, NAME:ROLE=file:/path or NAME:project:PROJECT+PROJECT=file:/path, names without spaces")
	}
	a := Account{Account: account}
	if err := a.Token.Parse(ref, false, home); err != nil {
		return Account{}, fmt.Errorf("token of %s: %w", a.Name, err)
	}
	return a, nil
}

// ParseAccounts returns the accounts of the configuration. Conversations belong to the name of an account, so two
// accounts with different rights must not have the same name.
func (c *Config) ParseAccounts() ([]Account, error) {
	all := []Account{{}} // the caller with the server's own token or socket
	for _, text := range c.Accounts {
		a, err := parseAccount(text, homeDir(nil))
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.WithDefaults().Name == a.Name && other.Identity() != a.Identity() {
				return nil, fmt.Errorf("%s: another account with other rights has this name, and would share its conversations: use another name", a.Name)
			}
		}
		all = append(all, a)
	}
	return all[1:], nil
}

// Tokens returns the accounts by token. Kinds: ErrInvalid (a token cannot be read, or two accounts have the same).
func (c *Config) Tokens() (map[string]Account, error) {
	all, err := c.ParseAccounts()
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
