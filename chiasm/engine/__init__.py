"""The engine: a frontend that takes requests, a core that decides, an executor that has ranks obey."""
