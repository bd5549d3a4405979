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
		Short: "Manage the API keys of a server",
		Long: `An API key is a bearer token for TCP clients: atoll --url URL --token env:KEY. A
key with the role project can use its projects only, and sees nothing else; a key
with the role admin can do everything, like the server's own token. Only a hash of
the secret is stored. Servers that share a store share its keys.`,
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
		Short: "Create a key, and print its secret, only once",
		Long: `Create creates a key and prints its secret, which cannot be shown again. The first
of several projects is the default project of new sandboxes.

Conversations belong to accounts: keys of one account share them, so they have the
same role and projects. Without --account, the account is named after the projects,
or default for an admin.`,
		Example: `  atoll key create ci --for web
  atoll key create team --for web --for api --ttl 30d
  atoll key create ops --admin`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if admin == (len(spec.Projects) > 0) {
				return usageErrorf("name the projects with --for, or use --admin for all")
			}
			spec.Name, spec.Role, spec.TTL = args[0], auth.RoleProject, atoll.Duration(ttl)
			if admin {
				spec.Role = auth.RoleAdmin
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				made, err := c.client.CreateKey(ctx, spec)
				if err != nil {
					return err
				}
				return a.printSecret(made, asJSON)
			})
		},
	}
	cmd.Flags().StringArrayVar(&spec.Projects, "for", nil, "`project` that the key may use; can be repeated")
	cmd.Flags().BoolVar(&admin, "admin", false, "the key may do everything")
	cmd.Flags().StringVar(&spec.Account, "account", "", "`name` of the account that owns its conversations")
	cmd.Flags().Var((*durationValue)(&ttl), "ttl", "`time` until the key expires, like 30d (default never)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// printSecret prints the secret of a key, or the whole key as JSON.
func (a *app) printSecret(made auth.NewKey, asJSON bool) error {
	if asJSON {
		return a.printJSON(made)
	}
	_, err := fmt.Fprintln(a.stdout, made.Secret)
	return err
}

func newKeyLs(a *app) *cobra.Command {
	l := listFlags{ifEmpty: "no keys yet: atoll key create NAME --for PROJECT creates one"}
	var all bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List keys",
		Long: `Ls lists the valid keys, oldest first; with --all also removed and expired ones.
USED is accurate to ten minutes.`,
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
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
							k.ID, k.Name, k.Role, cmp.Or(strings.Join(k.Projects, ","), "all"), k.Account, formatAge(now, k.Created), formatAge(now, k.Used), keyState(k, now),
						}
					})
			})
		},
	}
	l.addFlags(cmd, "print ids only")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list removed and expired keys")
	return cmd
}

// formatAge returns the time since at, or "never" if at is zero.
func formatAge(now, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return formatAgo(now.Sub(at))
}

// keyState describes the validity of a key.
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
		Short: "Replace the secret of a key, and print the new one, only once",
		Long: `Rotate gives a key, by name or id, another secret, and prints it. The current
secret remains valid for the time of --grace, so that clients can switch; an
earlier one expires at once. No server needs a restart: all servers that share the
store accept the new secret within five seconds.`,
		Example: `  atoll key rotate ci
  atoll key rotate ci --grace 0s    # it was published`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if grace < 0 {
				return usageErrorf("grace %s: must not be negative", grace)
			}
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				made, err := c.client.RotateKey(ctx, args[0], atoll.Duration(grace))
				if err != nil {
					return err
				}
				return a.printSecret(made, asJSON)
			})
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", time.Duration(auth.DefaultRotateGrace), "`time` for which the old secret remains valid, 0s for none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newKeyRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm KEY...",
		Short: "Revoke keys permanently",
		Long: `Rm revokes keys, by name or id: all servers that share the store refuse them within
five seconds, and end their running calls within fifteen. Their sandboxes
and conversations remain.`,
		Example:           `  atoll key rm ci`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				return a.forEach(args, func(ref string) error { return c.client.RevokeKey(ctx, ref) })
			})
		},
	}
}
