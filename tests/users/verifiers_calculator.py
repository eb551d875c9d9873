"""A taskset of verifiers 0.4 with a tool: products that are computed by a tool server."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Products"]


class CalculatorToolset(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers."""
        return str(a * b)


class ProductData(vf.TaskData):
    answer: int


class ProductConfig(vf.TaskConfig):
    calculator: vf.ToolsetConfig = vf.ToolsetConfig()


class ProductTask(vf.Task[ProductData, vf.State, ProductConfig]):
    @classmethod
    def toolsets(cls, config: ProductConfig) -> list[vf.Toolset]:
        return [CalculatorToolset(config.calculator)]

    @vf.reward
    async def right(self, task: ProductData, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(task.answer))


class ProductsConfig(vf.TasksetConfig):
    task: ProductConfig = ProductConfig()


class Products(vf.Taskset[ProductTask, ProductsConfig]):
    def load(self) -> Iterator[ProductTask]:
        for a in range(10, 40):
            yield ProductTask(ProductData(prompt=f"{a} times {a + 1}?", answer=a * (a + 1)), self.config.task)


if __name__ == "__main__":
    CalculatorToolset.run()
