package home

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

const (
	maxVariables  = 100
	maxValueBytes = 32 << 10
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// reserved are variables that decide where Hermes keeps its state, what it runs and how it asks
// for approval: the runtime sets them, never a request. A name ending in "*" is a prefix.
var reserved = []string{"HERMES_*", "TIRITH_*", "TERMINAL_*", "LD_*", "PYTHON*", "PATH", "HOME", "SHELL", "ENV",
	"BASH_*", "IFS", "TMPDIR", "OP_SERVICE_ACCOUNT_TOKEN"}

func isReserved(name string) bool {
	return slices.ContainsFunc(reserved, func(r string) bool {
		if prefix, ok := strings.CutSuffix(r, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == r
	})
}

func checkEnvironment(environment map[string]string) error {
	if len(environment) > maxVariables {
		return errs.New(errs.Invalid, fault.InvalidEnvironment, "environment has %d variables, want at most %d", len(environment), maxVariables)
	}
	for name, value := range environment {
		problem := ""
		switch {
		case !variableName.MatchString(name):
			problem = "is not a variable name"
		case isReserved(name):
			problem = "is set by the runtime"
		case len(value) > maxValueBytes:
			problem = "has a value of more than 32 KiB"
		case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
			problem = "has a value with a NUL or invalid UTF-8"
		}
		if problem != "" {
			return errs.New(errs.Invalid, fault.InvalidEnvironment, "environment variable %q %s", name, problem)
		}
	}
	return nil
}

// appendEnv returns the .env text base with the variables after it, by name.
func appendEnv(base []byte, environment map[string]string) ([]byte, error) {
	if err := checkEnvironment(environment); err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(slices.Clone(base))
	if len(base) > 0 && base[len(base)-1] != '\n' {
		out.WriteByte('\n')
	}
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		out.WriteString(name + "=" + quote(environment[name]) + "\n")
	}
	return out.Bytes(), nil
}

// quoter writes a value for python-dotenv's double quotes, which decode escapes and then replace
// ${name}, ${name:-default} with no way to escape either. A variable without a name never exists,
// so ${:-x} stands for x where x itself would be misread:
//   - "${" would name a variable;
//   - NAME= inside a value makes Hermes split the line if NAME is one it knows, before python-dotenv
//     ever sees it; line ends inside quotes lose their indentation there too, so they are escaped.
var quoter = strings.NewReplacer(
	`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\v", `\v`, "\f", `\f`,
	"${", "${:-$}{", "=", "${:-=}",
)

var plainValue = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,-]+$`)

func quote(value string) string {
	if plainValue.MatchString(value) {
		return value
	}
	q := quoter.Replace(value)
	// python-dotenv takes a backslash before the closing quote for an escaped quote, however many
	// there are, and would read on into the next line.
	if strings.HasSuffix(q, `\`) {
		q += "${:-}"
	}
	return `"` + q + `"`
}
