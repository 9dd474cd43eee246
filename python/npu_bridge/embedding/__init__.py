"""The embedding service of one generation of the NPU adapter, which needs its servers: names only. Tables are mxrec's."""
