package config

import (
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An Account is who may use the server over TCP, besides whoever has the
// server's own token.
type Account struct {
	auth.Account
	Token Secret
}

// parseAccount reads "NAME[:ROLE[:PROJECTS]]=REFERENCE", where the reference is that of
// the account's token.
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

// accounts are those that c names. As conversations belong to a name, two that may do
// different things do not have one name.
func (c *Config) accounts() ([]Account, error) {
	all := []Account{{}} // whoever has the server's own token, or its socket
	for _, text := range c.Accounts {
		a, err := parseAccount(text, homeDir(nil))
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.WithDefaults().Name == a.Name && other.Who() != a.Who() {
				return nil, fmt.Errorf("%s: is the account of others, too, who may do something else, and would share conversations with it: name it otherwise", a.Name)
			}
		}
		all = append(all, a)
	}
	return all[1:], nil
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
