package exactlyonce_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Callers and servers do not import each other, and neither of the two imports the
// operator or go-streams.
func TestImports(t *testing.T) {
	const here = "github.com/weirflow/weir/"
	operator := []string{
		here + "asyncop", here + "asyncop/internal/core", here + "asyncop/internal/drive", here + "checkpoint", here + "flow", here + "queue",
		"github.com/reugn/go-streams",
	}
	for pkg, others := range map[string][]string{
		"exactlyonce":        {here + "exactlyonce/caller", here + "exactlyonce/server", here + "predicates"},
		"exactlyonce/caller": {here + "exactlyonce/server"},
		"exactlyonce/server": {here + "exactlyonce/caller", here + "message", here + "predicates"},
		"exactlyonce/keys":   {here + "exactlyonce/caller", here + "exactlyonce/server", here + "message", here + "predicates"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", here+pkg).Output()
		require.NoError(t, err)
		deps := strings.Fields(string(out))
		require.Contains(t, deps, here+"exactlyonce", pkg)
		for _, other := range slices.Concat(operator, others) {
			require.NotContains(t, deps, other, pkg)
		}
	}
}
