package holder

import (
	"io"
	"os"
)

func fakeAgent(string, io.Reader, io.Writer, *os.File) int { return 0 }
