package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func newKey(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "API keys of a server, each for some projects or for all",
		Long: `An API key is a bearer token for who comes by TCP: atoll --url URL --token env:KEY.
One with the role project uses what is in its projects, and finds nothing else; one
with the role admin may do everything, as the server's own token may. Only a hash of
it is kept. Servers that share a store know the same keys.`,
	}
	cmd.AddCommand(newKeyCreate(a), newKeyLs(a), newKeyRotate(a), newKeyRm(a))
	return cmd
}

func newKeyCreate(a *app) *cobra.Command {
	var spec auth.KeySpec
	var admin, asJSON bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME [flags]",
		Short: "Make a key, and print its secret, this once",
		Long: `Create makes a key, and prints its secret: nobody can show it again. The first of
several projects is that of sandboxes which name none.

Conversations belong to accounts: keys of one account share them, and so have one
role and the same projects. Without --account it is one that is named after the
projects, or default for an admin.`,
		Example: `  atoll key create ci --for web
  atoll key create team --for web --for api --ttl 720h
  atoll key create ops --admin`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if admin == (len(spec.Projects) > 0) {
				return usagef("name the projects with --for, or give --admin for all")
			}
			spec.Name, spec.Role, spec.TTL = args[0], auth.RoleProject, atoll.Duration(ttl)
			if admin {
				spec.Role = auth.RoleAdmin
			}
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				made, err := c.client.CreateKey(ctx, spec)
				if err != nil {
					return err
				}
				return a.printSecret(made, asJSON)
			})
		},
	}
	cmd.Flags().StringArrayVar(&spec.Projects, "for", nil, "`project` that the key may use; may be given more than once")
	cmd.Flags().BoolVar(&admin, "admin", false, "the key may do everything")
	cmd.Flags().StringVar(&spec.Account, "account", "", "`name` of the account whose conversations it has")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "`time` that it is good for, like 720h (default until it is removed)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// printSecret prints the secret of a key, or all that is known of it.
func (a *app) printSecret(made auth.NewKey, asJSON bool) error {
	if asJSON {
		return a.printJSON(made)
	}
	_, err := fmt.Fprintln(a.stdout, made.Secret)
	return err
}

func newKeyLs(a *app) *cobra.Command {
	var l listing
	var all bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List keys",
		Long: `Ls lists the keys that can be used, oldest first; with --all also those that were
removed or have expired. USED is exact to ten minutes.`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				keys, err := c.client.Keys(ctx)
				if err != nil {
					return err
				}
				now := time.Now()
				if !all {
					keys = slices.DeleteFunc(keys, func(k auth.Key) bool { return !k.Valid(now) })
				}
				return printList(a, l, keys, func(k auth.Key) string { return k.ID },
					[]string{"ID", "NAME", "ROLE", "PROJECTS", "ACCOUNT", "CREATED", "USED", "STATE"},
					func(k auth.Key) []string {
						return []string{
							k.ID, k.Name, k.Role, cmp.Or(strings.Join(k.Projects, ","), "all"), k.Account, age(now, k.Created), age(now, k.Used), keyState(k, now),
						}
					})
			})
		},
	}
	l.register(cmd, "print ids only")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those that cannot be used any more, too")
	return cmd
}

// age is how long ago something was, "never" if it was not.
func age(now, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return ago(now.Sub(at))
}

// keyState says what becomes of a key.
func keyState(k auth.Key, now time.Time) string {
	switch {
	case !k.Revoked.IsZero():
		return "removed"
	case k.Expires.IsZero():
		return "good"
	case k.Valid(now):
		return "until " + k.Expires.UTC().Format(time.RFC3339)
	}
	return "expired"
}

func newKeyRotate(a *app) *cobra.Command {
	var grace time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate KEY [flags]",
		Short: "Give a key another secret, and print that, this once",
		Long: `Rotate gives a key, by its name or id, another secret, and prints it. The one that
it has stays good for a while, in which all who use it get the new one; the one
before that does not. No server is restarted: all that share a store go by it within
five seconds.`,
		Example: `  atoll key rotate ci
  atoll key rotate ci --grace 0s    # it was published`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if grace < 0 {
				return usagef("grace %s: must not be negative", grace)
			}
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				made, err := c.client.RotateKey(ctx, args[0], atoll.Duration(grace))
				if err != nil {
					return err
				}
				return a.printSecret(made, asJSON)
			})
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", time.Duration(auth.DefaultRotateGrace), "`time` that the old secret stays good, 0s for none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newKeyRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm KEY...",
		Short: "Revoke keys, for good",
		Long: `Rm revokes keys, by their names or ids: all servers that share a store refuse them
within five seconds, and break off what goes on by them within fifteen. What was
made with them stays.`,
		Example:           `  atoll key rm ci`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, c *connection) error {
				return a.each(args, func(ref string) error { return c.client.RevokeKey(ctx, ref) })
			})
		},
	}
}
